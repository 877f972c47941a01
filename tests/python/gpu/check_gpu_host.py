"""Checks a GPU host in under five minutes, with a plan that was built on a machine without a GPU.

    python check_gpu_host.py write FOLDER [--arch sm_90]    anywhere: plans, the CPU's results
    python check_gpu_host.py check FOLDER                   on the GPU host
    mpirun -n 4 python check_gpu_host.py check FOLDER --mpi     one GPU a rank

`check` loads each plan with TVM's runtime, runs one step and compares it with the CPU's, and prints
the time of every kernel. The plan with AllReduces sends its gradients over NCCL, between all ranks
with --mpi: all have the same batch, so the averages are the gradients. What cannot be done here is
left out with a reason; the exit status is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from disco_fuse import zoo
from disco_fuse.baselines import baseline
from disco_fuse.extract import extract
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.plan import load_plan, write_plan
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import Communicator, loopback, nccl
from disco_fuse.target import GPU_ARCHS, gpu_target, host_target
from disco_fuse.testing import mlp_arguments, mlp_step, random_strategy

RTOL, ATOL = 1e-3, 1e-4
STEPS = 20


def write(folder: Path, arch: str, models: tuple[str, ...] = ("bert_small",)) -> None:
    """Plans of a perceptron and of models of the zoo, and what one step of them gives on a CPU."""
    for case, averaged in (("mlp", False), ("mlp_allreduce", True)):
        mod = mlp_step(batch=64, widths=(96, 128, 40), gradients=averaged)
        names = [param.name for param in mod["main"].params]
        values = dict(zip(names, mlp_arguments(mod), strict=True))
        mod = InsertAllReduce()(mod) if averaged else mod
        _write_case(folder / case, mod, values, names, arch)
    for name in models:
        from disco_fuse.frontend.torch import training_step

        load = zoo.workload(name)
        step = training_step(
            load.model, load.example_tensors(), loss=load.loss, optimizer=load.optimizer
        )
        params = [param.name for param in step.mod["main"].params]
        inputs = params[: int(step.mod["main"].attrs["num_input"])]
        values = dict(zip(inputs, load.example_batch(), strict=True)) | step.values
        _write_case(folder / name, step.mod, values, list(values), arch)


def _write_case(
    folder: Path, mod: tvm.IRModule, values: dict[str, Any], names: list[str], arch: str
) -> None:
    for kind, target in (("cpu", host_target()), ("gpu", gpu_target(arch))):
        lowered = lower(mod, target, library=False)
        extraction = extract(lowered)
        rule = baseline("default", lowered, extraction)
        write_plan(
            folder / kind,
            name="default",
            model=folder.name,
            mod=lowered,
            extraction=extraction,
            strategy=rule if kind == "cpu" else random_strategy(extraction.graph, 0),
            target=target,
            world_size=1,
            cost_model={"name": "none", "digest": ""},
            predicted={},
            names=names,
        )
    np.savez(folder / "values.npz", **values)
    outputs, state = _one_step(folder / "cpu", values, loopback())
    expected = {f"output{i}": value for i, value in enumerate(outputs)}
    np.savez(folder / "expected.npz", **expected, **state)


def _one_step(
    folder: Path, values: dict[str, Any], communicator: Communicator
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Outputs and state of one step of a plan."""
    plan = load_plan(folder)
    runner = StepRunner(folder, communicator, values)
    outputs = runner.step([values[spec.name] for spec in plan.tensors[: plan.num_inputs]])
    return outputs, runner.values()


def reason_to_skip() -> str:
    """Why this is no GPU host, "" if it is one."""
    if not tvm.runtime.enabled("cuda"):
        return "TVM finds no CUDA driver"
    return "" if tvm.cuda(0).exist else "there is no GPU"


def check(folder: Path, *, mpi: bool = False) -> int:
    """All checks; the number of wrong results on this rank."""
    reason = reason_to_skip()
    if reason:
        print(f"left out: {reason}")
        return 0
    try:
        communicator = nccl(None if mpi else False)
    except RuntimeError as error:
        if mpi:
            raise
        print(f"AllReduces over NCCL left out: {error}")
        communicator = loopback()
    cases = sorted(path.parent for path in folder.glob("*/expected.npz"))
    return sum(_check_case(case, communicator) for case in cases)


def _check_case(case: Path, communicator: Communicator) -> int:
    plan = load_plan(case / "gpu")
    if plan.num_allreduces and communicator.device is None:
        return 0
    values = dict(np.load(case / "values.npz"))
    expected = dict(np.load(case / "expected.npz"))
    outputs, state = _one_step(case / "gpu", values, communicator)
    actual = {f"output{i}": value for i, value in enumerate(outputs)} | state
    wrong = differences(actual, expected)
    rank = f"rank {communicator.rank} of {communicator.world_size}, "
    for line in wrong:
        print(f"{rank}{case.name}: WRONG {line}")
    right = len(actual) - len(wrong)
    print(f"{rank}{case.name}: {right} of {len(actual)} tensors equal the CPU's")
    if communicator.rank == 0 and not plan.num_allreduces:
        _print_times(case / "gpu", values)
    return len(wrong)


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What differs by more than rounding, in words."""
    lines = []
    for name, want in expected.items():
        if name not in actual:
            lines.append(f"{name} is missing")
        elif not np.allclose(actual[name], want, rtol=RTOL, atol=ATOL, equal_nan=True):
            worst = float(np.abs(actual[name].astype("float64") - want).max())
            lines.append(f"{name} differs by {worst:.3g}")
    return lines


def _print_times(folder: Path, values: dict[str, Any]) -> None:
    """Milliseconds of a step, and of each kernel with the device idle before and after it."""
    device = tvm.cuda(0)
    plan = load_plan(folder)
    module = tvm.runtime.load_module(str(folder / "step.so"))
    machine = relax.VirtualMachine(module, device)
    arguments = [tvm.runtime.tensor(values[spec.name], device) for spec in plan.tensors]
    for _ in range(2):
        machine["main"](*arguments)
    device.sync()
    begin = time.perf_counter()
    for _ in range(STEPS):
        machine["main"](*arguments)
    device.sync()
    print(f"{plan.model}: {(time.perf_counter() - begin) / STEPS * 1e3:.3f} ms a step")
    total: dict[str, float] = defaultdict(float)
    started = [0.0]

    def note(_func: Any, name: str, before: bool, *_: Any) -> int:
        device.sync()
        if before:
            started[0] = time.perf_counter()
        else:
            total[name] += time.perf_counter() - started[0]
        return 0  # VMInstrumentReturnKind.NO_OP: run the kernel

    machine.set_instrument(note)
    machine["main"](*arguments)
    machine.set_instrument(None)
    for name, seconds in sorted(total.items(), key=lambda item: -item[1]):
        print(f"  {seconds * 1e6:9.1f} us  {name}")


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("write", "check"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path)
        if name == "write":
            command.add_argument("--arch", choices=GPU_ARCHS, default="sm_90")
        else:
            command.add_argument("--mpi", action="store_true", help="one of several ranks")
    options = parser.parse_args(arguments)
    if options.command == "write":
        write(options.folder, options.arch)
        return 0
    return 1 if check(options.folder, mpi=options.mpi) else 0


if __name__ == "__main__":
    sys.exit(main())
