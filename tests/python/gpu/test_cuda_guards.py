"""A rule that raises, declines or writes nonsense is passed over; the last rule serves anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_kernels import TARGET, buffer_inputs, f32, fused, random_inputs, rules_used
from emulator import Emulated
from tvm import relax, s_tir, tirx

from disco_fuse.kernels.cpu.driver import in_root_block
from disco_fuse.kernels.cpu.loops import int_imm
from disco_fuse.kernels.cuda import driver, nests, schedule
from disco_fuse.kernels.cuda.context import Limits, launch
from disco_fuse.kernels.cuda.verify import RefusedError, verify
from disco_fuse.target import GPU_ARCHS, gpu_target

op = relax.op
LIMITS = Limits(max_threads=1024, max_shared_bytes=48 * 1024)
SPECS = [f32(40, 50), f32(40, 50)]


def _group() -> tirx.PrimFunc:
    return fused(lambda emit, x, y: emit(op.exp(emit(op.add(x, y)))), SPECS)


def _raises(_func: tirx.PrimFunc, _target: Any) -> tirx.PrimFunc:
    raise RuntimeError("cannot schedule")


def _unchanged(func: tirx.PrimFunc, _target: Any) -> tirx.PrimFunc:
    return func


def _store(block: tirx.Expr, x: tirx.Expr, buffer: tirx.Buffer) -> tirx.Stmt:
    return tirx.BufferStore(buffer, tirx.FloatImm("float32", 0.0), [block, x])


def _too_many_threads(func: tirx.PrimFunc, _target: Any) -> tirx.PrimFunc:
    body = launch(40, (2048, 1), lambda b, x, _: [_store(b, x, func.params[-1])])
    return func.with_body(in_root_block(body))


@pytest.mark.parametrize("bad", [_raises, _unchanged, _too_many_threads])
def test_a_bad_rule_is_passed_over(
    bad: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "RULES", (("bad", bad), *driver.RULES[1:]))
    with rules_used() as used:
        schedule(_group(), TARGET)
    assert used == ["dlight"]
    _check(tmp_path)


def test_the_last_rule_serves_what_no_other_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "RULES", (("a", _raises), ("b", _unchanged), driver.RULES[-1]))
    with rules_used() as used:
        schedule(_group(), TARGET)
    assert used == ["one_thread"]
    _check(tmp_path)


def test_a_bad_rule_of_a_nest_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(*_: Any) -> list[tirx.Stmt]:
        raise KeyError("x")

    monkeypatch.setattr(nests.pointwise, "emit", bad)
    with rules_used() as used:
        schedule(_group(), TARGET)
    assert used == ["teams", "nests"]
    monkeypatch.setattr(nests.teams, "emit", lambda *_: [tirx.Evaluate(tirx.op.ret(0))])
    with rules_used() as used:
        schedule(_group(), TARGET)
    assert used == ["dlight"]


def test_a_loop_on_the_host_is_spread_or_run_by_one_thread(tmp_path: Path) -> None:
    """A statement that is no block: ``for i in T.parallel`` in an opaque operator."""
    x, y = (tirx.decl_buffer((300,), "float32", name=name) for name in "xy")
    i = tirx.Var("i", "int64")
    store = tirx.BufferStore(y, tirx.BufferLoad(x, [i]) + tirx.FloatImm("float32", 1), [i])
    functions = {}
    for name, kind in (("parallel", tirx.ForKind.PARALLEL), ("serial", tirx.ForKind.SERIAL)):
        loop = tirx.For(i, int_imm(0), int_imm(300), kind, store)
        block = s_tir.SBlock([], [], [], "opaque", loop)
        realize = s_tir.SBlockRealize([], tirx.IntImm("bool", 1), block)
        functions[name] = tirx.PrimFunc([x, y], in_root_block(realize))
    with rules_used() as used:
        threads = [
            verify([schedule(func, TARGET).body], LIMITS)[0].count("threadIdx")
            for func in functions.values()
        ]
    assert used == ["opaque", "nests"] * 2
    assert threads == [256, 1]
    emulated = Emulated(functions, TARGET, tmp_path)
    data = random_inputs([f32(300)])
    for name, func in functions.items():
        _, result = emulated.run(name, buffer_inputs(func, data))
        np.testing.assert_array_equal(result, data[0] + 1)


def _check(folder: Path) -> None:
    """The group computes the right thing under the rules that are set."""
    func = _group()
    x, y = random_inputs(SPECS)
    *_, result = Emulated({"k": func}, TARGET, folder).run("k", buffer_inputs(func, [x, y]))
    np.testing.assert_allclose(result, np.exp(x + y), rtol=1e-5)


def _shared(elements: int) -> tirx.Stmt:
    buffer = tirx.decl_buffer((int_imm(elements),), "float64", name="s", scope="shared")
    return tirx.AllocBuffer(buffer)


def _nothing(*_: Any) -> list[tirx.Stmt]:
    return [tirx.Evaluate(tirx.IntImm("int32", 0))]


def _inner_launch(threads: int) -> tirx.Stmt:
    return launch(1, (threads, 1), _nothing)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (_store(int_imm(0), int_imm(0), tirx.decl_buffer((1, 1))), "BufferStore runs on the host"),
        (launch(1, (1025, 1), _nothing), "1025 threads a block; at most 1024"),
        (launch(1, (64, 32), _nothing), "2048 threads a block"),
        (launch(2**31, (1, 1), _nothing), "2147483648 blocks; allowed: 1 to 2147483647"),
        (launch(0, (1, 1), _nothing), "0 blocks"),
        (launch(1, (32, 1), lambda *_: [_shared(6145)]), "49160 bytes shared; at most 49152"),
        (_inner_launch(8).body, r"bound to \['threadIdx.x'\] only, not to blocks"),
        (
            launch(1, (32, 1), lambda *_: [_inner_launch(16).body]),
            "threadIdx.x has extents 32 and 16",
        ),
    ],
)
def test_what_no_device_can_run_is_refused(statement: tirx.Stmt, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        verify([statement], LIMITS)


def test_limits_are_met_exactly() -> None:
    statements = [launch(1, (1024, 1), lambda *_: [_shared(6144)]), launch(3, (32, 2), _nothing)]
    first, second = verify(statements, LIMITS)
    assert (first.count("threadIdx"), first.shared_bytes) == (1024, 49152)
    assert (second.count("threadIdx"), second.count("blockIdx")) == (64, 3)


@pytest.mark.parametrize("arch", ["sm_70", "sm_100", "75", ""])
def test_unknown_architectures_are_refused(arch: str) -> None:
    with pytest.raises(ValueError, match=f"'{arch}'; allowed: {', '.join(GPU_ARCHS)}"):
        gpu_target(arch)
