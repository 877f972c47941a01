"""By how much kernels are slower while an AllReduce is under way; as a module, the rank program.

    alone     kernel kernel kernel ...                  the ranks compute, nothing is sent
    beside    start | kernel kernel kernel ... | wait   calls that ended before the message did

One kernel stands for each pattern: how much it loses depends on whether it needs the memory, the
caches or only the core that the transport takes turns with.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from disco_fuse.build import build
from disco_fuse.launch import run
from disco_fuse.lower import lower
from disco_fuse.profile.allreduce import RunRanks
from disco_fuse.profile.database import ProfileDatabase, Sample
from disco_fuse.profile.kernels import Progress
from disco_fuse.runtime import Communicator, EventKind, Session, abort_on_error, mpi
from disco_fuse.runtime.session import allreduce_start, allreduce_wait

# 4 MiB in three tensors and more: they come from memory, or from a cache that all cores share.
_SIDE = 1024
_SMALL_SIDE = 192  # of the matmul, which lives in the private cache
_MESSAGE_BYTES = 8 * 2**20
_CALLS = 40
_MOST_ROUNDS = 20
_TIMEOUT_S = 600.0

_PATTERNS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "elementwise": (_SIDE, lambda x, y: relax.op.add(relax.op.multiply(x, y), y)),
    "injective": (_SIDE, lambda x, y: relax.op.add(relax.op.permute_dims(x), y)),
    "reduction": (_SIDE, lambda x, y: relax.op.sum(relax.op.multiply(x, y), axis=1)),
    "matmul": (_SMALL_SIDE, lambda x, y: relax.op.matmul(x, y)),
}
PATTERNS = tuple(_PATTERNS)
"""What is measured, by name."""


def profile_contention(
    database: ProfileDatabase,
    environment: str,
    target: tvm.target.Target,
    num_ranks: int,
    run_ranks: RunRanks = run,
    progress: Progress | None = None,
) -> int:
    """Measure the patterns that ``database`` lacks; returns how many those were.

    Parameters, errors
    ------------------
    As for :func:`disco_fuse.profile.messages.profile_messages`.
    """
    known = load_contention(database, environment)
    missing = [pattern for pattern in PATTERNS if pattern not in known]
    for done, pattern in enumerate(missing, start=1):
        with tempfile.TemporaryDirectory(prefix="df-") as temporary:
            folder = Path(temporary)
            side, expression = _PATTERNS[pattern]
            kernel = _kernel(expression, side, target)
            build(kernel, target).executable.export_library(str(folder / "kernel.so"))
            program = ["-m", "disco_fuse.profile.contention", str(folder), str(side)]
            finished = run_ranks(program, num_ranks, timeout_s=_TIMEOUT_S)
            if finished.returncode != 0:
                raise RuntimeError(f"measuring contention ended with status {finished.returncode}")
            measured = json.loads((folder / "times.json").read_text(encoding="utf-8"))
        alone, beside = _names(pattern)
        samples = {alone: Sample.of(measured["alone"]), beside: Sample.of(measured["beside"])}
        database.store(environment, samples)
        if progress is not None:
            progress(done, len(missing), f"contention of {pattern}")
    return len(missing)


def load_contention(
    database: ProfileDatabase, environment: str
) -> dict[str, tuple[Sample, Sample]]:
    """By pattern: a kernel alone and beside an AllReduce, of the patterns that are known."""
    result = {}
    for pattern in PATTERNS:
        alone, beside = _names(pattern)
        found = database.load(environment, [alone, beside])
        if len(found) == 2:
            result[pattern] = (found[alone], found[beside])
    return result


def _names(pattern: str) -> tuple[str, str]:
    return f"contention {pattern}, alone", f"contention {pattern}, beside an AllReduce"


def _kernel(
    expression: Callable[[Any, Any], Any], side: int, target: tvm.target.Target
) -> tvm.IRModule:
    """A function of two square matrices, as one generated kernel."""
    ty = relax.TensorType((side, side), "float32")
    builder = relax.BlockBuilder()
    x, y = relax.Var("x", ty), relax.Var("y", ty)
    with builder.function("main", [x, y]):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(expression(x, y)))
        builder.emit_func_output(output)
    return relax.transform.FuseTIR()(
        relax.transform.FuseOps()(lower(builder.get(), target, library=False))
    )


def time_calls(call: Callable[[], Any], communicator: Communicator) -> dict[str, list[float]]:
    """Microseconds of calls of one kernel, of all ranks together.

    Returns
    -------
    dict
        ``alone`` and ``beside``: at least one call each, the same on every rank.

    Raises
    ------
    RuntimeError
        Every message was over before a call was: the kernel is too long for this link.
    """
    session = Session(communicator, max_events=4)
    array = np.ones(_MESSAGE_BYTES // 4, np.float32)
    call()
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(_MOST_ROUNDS):
        communicator.barrier()
        alone += [finish - start for start, finish in _calls(call, _CALLS)]
        communicator.barrier()
        with session.step():
            begin = time.perf_counter()
            allreduce_start(0, array)
            times = _calls(call, _CALLS)
            allreduce_wait(0, array)
        for _, _, start_ns, finish_ns in session.events().of(EventKind.ALLREDUCE):
            first_us, last_us = begin * 1e6 + start_ns / 1e3, begin * 1e6 + finish_ns / 1e3
            beside += [end - at for at, end in times if at >= first_us and end <= last_us]
        if min(communicator.allgather(len(beside))) >= _CALLS:
            break
    everyone = communicator.allgather((alone, beside))
    result = {
        "alone": [us for ours, _ in everyone for us in ours],
        "beside": [us for _, ours in everyone for us in ours],
    }
    if not result["beside"]:
        raise RuntimeError(
            f"no call of the kernel ended before a message of {_MESSAGE_BYTES} bytes did"
        )
    return result


def _calls(call: Callable[[], Any], num_calls: int) -> list[tuple[float, float]]:
    """(start, finish) of each call, microseconds."""
    result = []
    for _ in range(num_calls):
        begin = time.perf_counter()
        call()
        result.append((begin * 1e6, time.perf_counter() * 1e6))
    return result


def main() -> None:
    """The program of one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("side", type=int, help="rows and columns of the kernel's matrices")
    arguments = parser.parse_args()
    communicator = mpi()
    with abort_on_error(communicator):
        module = tvm.runtime.load_module(str(arguments.folder / "kernel.so"))
        kernel = relax.VirtualMachine(module, tvm.cpu())["main"]
        rng = np.random.default_rng(communicator.rank)
        shape = (arguments.side, arguments.side)
        x, y = (tvm.runtime.tensor(rng.random(shape, np.float32)) for _ in range(2))
        times = time_calls(lambda: kernel(x, y), communicator)
        if communicator.rank == 0:
            file = arguments.folder / "times.json"
            file.write_text(json.dumps(times), encoding="utf-8")
    communicator.close()


if __name__ == "__main__":
    main()
