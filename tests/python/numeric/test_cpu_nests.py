"""Fusion groups of random graphs: right numbers, and as many nests as the rules say."""

import logging
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import tvm
from cpu_kernels import TARGETS, check, f32, group, kernel
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx

from disco_fuse.kernels.analysis import num_nests
from disco_fuse.kernels.cpu import ScheduleCPU, schedule

op = relax.op
ROWS, LENGTH = 6, 20


@dataclass(frozen=True)
class Member:
    """One operator of a group, as the cost model sees it."""

    kind: str
    inputs: tuple[int, ...]
    rows: int
    cheap: bool
    pattern: int


@dataclass
class Group:
    """A random group. Values 0 and 1 are inputs of shape [ROWS, LENGTH], 2 is a [LENGTH]."""

    members: list[Member] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(
        default_factory=lambda: [(ROWS, LENGTH), (ROWS, LENGTH), (LENGTH,)]
    )


FULL, ROW, COLUMN = (ROWS, LENGTH), (ROWS, 1), (1, LENGTH)
KINDS = {  # kind: shape of the first input, rows, cheap, pattern, shape of the result
    "exp": (FULL, ROWS, False, 0, FULL),
    "negate": (FULL, ROWS, True, 0, FULL),
    "add": (FULL, ROWS, True, 0, FULL),
    "add_row": (FULL, ROWS, True, 0, FULL),
    "sum_row": (FULL, ROWS, True, 3, ROW),
    "abs_row": (ROW, ROWS, True, 0, ROW),
    "sum_column": (FULL, 0, True, 3, COLUMN),
    "flip": (FULL, 0, True, 2, FULL),
}


def emit_member(emit, member, values):
    first = values[member.inputs[0]]
    second = values[member.inputs[-1]]
    return {
        "exp": lambda: emit(op.exp(first)),
        "negate": lambda: emit(op.negative(first)),
        "add": lambda: emit(op.add(first, second)),
        "add_row": lambda: emit(op.add(first, second)),
        "sum_row": lambda: emit(op.sum(first, [-1], keepdims=True)),
        "abs_row": lambda: emit(op.abs(first)),
        "sum_column": lambda: emit(op.sum(first, [0], keepdims=True)),
        "flip": lambda: emit(op.flip(first, 0)),
    }[member.kind]()


def numpy_member(member, values):
    first = values[member.inputs[0]]
    second = values[member.inputs[-1]]
    return {
        "exp": lambda: np.exp(first),
        "negate": lambda: -first,
        "add": lambda: first + second,
        "add_row": lambda: first + second,
        "sum_row": lambda: first.sum(-1, keepdims=True),
        "abs_row": lambda: np.abs(first),
        "sum_column": lambda: first.sum(0, keepdims=True),
        "flip": lambda: first[::-1],
    }[member.kind]()


@st.composite
def groups(draw):
    result = Group()
    exps = 0
    for _ in range(draw(st.integers(1, 9))):
        allowed = [
            kind
            for kind, (shape, *_) in KINDS.items()
            if shape in result.shapes and (kind != "add_row" or ROW in result.shapes)
        ]
        kind = draw(st.sampled_from(allowed))
        exps += kind == "exp"
        if exps > 1 and kind == "exp":
            kind = "negate"
        shape, rows, cheap, pattern, out = KINDS[kind]
        choices = [k for k, s in enumerate(result.shapes) if s == shape]
        inputs = [draw(st.sampled_from(choices))]
        if kind in ("add", "add_row"):
            other = ROW if kind == "add_row" else FULL
            rest = [k for k, s in enumerate(result.shapes) if s == other and k != inputs[0]]
            inputs.append(draw(st.sampled_from(rest)))
        result.members.append(Member(kind, tuple(inputs), rows, cheap, pattern))
        result.shapes.append(out)
    return result


def outputs_of(members):
    """Members that nobody in the group reads, and the first one."""
    read = {value for member in members for value in member.inputs}
    return sorted({k for k in range(len(members)) if k + 3 not in read} | {0})


def expected_nests(members):
    """Rules 1 and 2, on operators."""
    outputs = set(outputs_of(members))
    consumers = [
        {c for c, other in enumerate(members) if k + 3 in other.inputs} for k in range(len(members))
    ]
    inlined = {
        k
        for k, member in enumerate(members)
        if member.pattern <= 2 and k not in outputs and (len(consumers[k]) == 1 or member.cheap)
    }

    def reached(k, same):
        for value in members[k].inputs:
            if value >= 3:
                producer = value - 3
                if producer in inlined:
                    yield from reached(producer, same and members[producer].rows == rows)
                else:
                    yield producer, same

    nest_of, count = {}, 0
    for k, member in enumerate(members):
        if k in inlined:
            continue
        rows = member.rows
        roots = list(reached(k, True))
        joins = False
        if roots and rows > 0:
            last = max(nest_of[r] for r, _ in roots)
            joins = all(same and members[r].rows == rows for r, same in roots if nest_of[r] == last)
        if joins:
            nest_of[k] = last
        else:
            nest_of[k] = count
            count += 1
    return count


@settings(max_examples=40, deadline=None)
@given(graph=groups())
def test_random_groups(graph):
    members = graph.members

    def build(emit, *inputs):
        values = list(inputs)
        for member in members:
            values.append(emit_member(emit, member, values))
        return [values[k + 3] for k in outputs_of(members)]

    def reference(*inputs):
        values = list(inputs)
        for member in members:
            values.append(numpy_member(member, values))
        return [values[k + 3] for k in outputs_of(members)]

    func = check(build, [f32(*FULL), f32(*FULL), f32(LENGTH)], reference, rtol=1e-4)
    assert num_nests(func) == expected_nests(members), members


def test_expensive_producer_of_two_is_a_root_in_the_same_nest():
    def build(emit, x):
        e = emit(op.exp(x))
        return [emit(op.add(e, x)), emit(op.sum(e, [-1]))]

    def reference(x):
        return [np.exp(x) + x, np.exp(x).sum(-1)]

    assert num_nests(check(build, [f32(5, 33)], reference)) == 1


def test_a_path_without_rows_opens_a_nest():
    # The two reshapes cancel, so the rows would line up; rule 2 does not look through them.
    def build(emit, x):
        e = emit(op.exp(x))
        again = emit(op.reshape(emit(op.reshape(e, [165])), [5, 33]))
        return [e, emit(op.tanh(again))]

    func = check(build, [f32(5, 33)], lambda x: [np.exp(x), np.tanh(np.exp(x))])
    assert num_nests(func) == 2


def test_operator_made_of_several_blocks_is_one_operator():
    # The gelu has two consumers and is expensive: a root, not recomputed in both. Each of its
    # blocks alone but the erf is cheap.
    def build(emit, x):
        g = emit(op.nn.gelu(x))
        return [emit(op.sum(g, [0])), emit(op.max(g, [0]))]

    def reference(x):
        g = x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))
        return [g.sum(0), g.max(0)]

    assert num_nests(check(build, [f32(9, 40)], reference)) == 3


def test_equal_functions_are_scheduled_once():
    first = kernel(group(lambda emit, x: emit(op.exp(x)), [f32(4, 8)]))
    module = tvm.IRModule({"a": first, "b": first.with_attr("tirx.noalias", True)})
    scheduled = ScheduleCPU(TARGETS["avx2"])(module)
    assert scheduled["a"].same_as(scheduled["b"])


def test_large_nests_use_the_cores_of_the_target():
    def build(emit, x, y):
        total = emit(op.sum(emit(op.multiply(x, y)), [0]))
        turned = emit(op.permute_dims(x, [1, 0]))
        return [emit(op.nn.softmax(x, -1)), emit(op.add(x, y)), total, turned]

    def reference(x, y):
        e = np.exp(x - x.max(-1, keepdims=True))
        return [e / e.sum(-1, keepdims=True), x + y, (x * y).sum(0), x.T]

    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    specs = [f32(256, 300), f32(256, 300)]
    func = check(build, specs, reference, target=target)
    assert "T.parallel" in func.script()
    assert "T.parallel" not in check(build, specs, reference).script()


def test_target_is_required():
    module = tvm.IRModule()
    with pytest.raises(ValueError, match="pass an llvm target"):
        ScheduleCPU()(module)


def test_input_module_is_not_changed():
    module = group(lambda emit, x: emit(op.exp(x)), [f32(4, 8)])
    before = module.script()
    ScheduleCPU(TARGETS["avx2"])(module)
    assert module.script() == before


def test_plain_rule_serves_what_nothing_else_reads(caplog):
    func = kernel(group(lambda emit, x: emit(op.exp(x)), [f32(4, 8)]))
    strided = tirx.decl_buffer((4, 8), "float32", strides=[16, 1])
    odd = tirx.PrimFunc([strided], tirx.Evaluate(tirx.IntImm("int32", 0)), attrs=func.attrs)
    with caplog.at_level(logging.DEBUG, "disco_fuse.kernels"):
        result = schedule(odd, TARGETS["avx2"])
    assert "tirx.is_scheduled" not in (result.attrs or {})
    assert "has strides" in caplog.text
