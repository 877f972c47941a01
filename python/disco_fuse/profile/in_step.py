"""Times every op where the step pays for it: inside an unfused step, on all ranks at once.

    profile_ops         op | op | op | op ...                one op again and again, its data near
    profile_in_step     op0 op1 op2 ... op0 op1 op2 ...      rank 0
                        op0 op1 op2 ... op0 op1 op2 ...      rank 1, beside it

In a step an op finds its inputs where other ops left them, mostly out of the private caches, and
shares the memory with the other ranks of its host; on CPUs that is 5 to 15% of the step. Nothing
is sent meanwhile: what messages take is measured by ``profile_allreduce``. By how much they slow
down the kernels of this very step is measured here, in a second series:

    alone    op0 op1 op2 ...
    beside   op0    op1    op2    ...     while the transport sends all the time

Their ratio is the contention. It differs between models (at 1 Gbit/s 1.36 for a byte GPT, 1.39 for
an LSTM, 1.56 for BERT, where the arithmetic and copies of ``profile_allreduce`` lose 1.55): kernels
that need the memory lose otherwise than those of a core. Run as a module, this is the rank program.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from disco_fuse.apply import apply
from disco_fuse.bindings import dtype_name, static_shape
from disco_fuse.build import build
from disco_fuse.config import UNCAPPED
from disco_fuse.extract import Extraction
from disco_fuse.kernels.library import (
    is_library_convolution,
    is_library_matmul,
    load_library,
)
from disco_fuse.launch import run
from disco_fuse.profile.allreduce import RunRanks
from disco_fuse.runtime import (
    Communicator,
    EventKind,
    Session,
    abort_on_error,
    loopback,
    mpi,
    outlasting,
    time_alone,
    time_beside,
)
from disco_fuse.strategy import Strategy

_NUM_WARMUP = 3
_NUM_STEPS = 15
_TIMEOUT_S = 600.0
_NUM_BESIDE = 7
_FIRST_BYTES = 2**20
# Of the random weights: the size of a trained model's, so that no step overflows.
_SCALE = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class StepProfile:
    """What a step pays for its ops.

    Attributes
    ----------
    op_times_us : float64[num_ops]
        Microseconds, lower quartiles over steps, means over ranks; zero for AllReduce ops.
    contention : float
        Factor >= 1 by which the step without its messages is slower while an AllReduce is under
        way: of lower quartiles over steps, mean over ranks; 1 for one rank.
    """

    op_times_us: NDArray[np.float64]
    contention: float


def profile_in_step(
    mod: tvm.IRModule,
    extraction: Extraction,
    target: tvm.target.Target,
    num_ranks: int,
    run_ranks: RunRanks = run,
) -> StepProfile:
    """Time of every op of the graph in an unfused step of ``num_ranks`` ranks, and contention.

    Parameters
    ----------
    mod : tvm.IRModule
        The lowered module that ``extraction`` was read from.
    run_ranks : callable
        Starts the ranks: :func:`disco_fuse.launch.run` or something with its signature.

    Raises
    ------
    ValueError
        More ranks than slots, or fewer than one.
    RuntimeError
        The ranks failed; they have printed why.
    """
    graph = extraction.graph
    unfused = Strategy.create(graph, list(range(graph.num_ops)), limits=UNCAPPED)
    ops = [unit.ops[0] for unit in unfused.units(graph) if unit.kind != "bucket"]
    with tempfile.TemporaryDirectory(prefix="df-") as temporary:
        folder = Path(temporary)
        built = build(apply(mod, extraction, unfused), target)
        built.executable.export_library(str(folder / "step.so"))
        params = [[list(static_shape(p.ty)), dtype_name(p.ty)] for p in mod["main"].params]
        calls = [b.value for b in extraction.bindings]
        needs_library = any(is_library_matmul(c) or is_library_convolution(c) for c in calls)
        spec = {"params": params, "needs_library": needs_library, "num_ranks": num_ranks}
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        program = ["-m", "disco_fuse.profile.in_step", str(folder)]
        finished = run_ranks(program, num_ranks, timeout_s=_TIMEOUT_S)
        if finished.returncode != 0:
            raise RuntimeError(f"profiling a step ended with status {finished.returncode}")
        measured = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    times_us = np.zeros(graph.num_ops)
    kernels_us = measured["kernels_us"]
    assert len(kernels_us) == len(ops), "the step runs other kernels than the strategy has"
    times_us[ops] = kernels_us
    return StepProfile(op_times_us=times_us, contention=measured["contention"])


def measure_step(folder: Path, communicator: Communicator) -> dict[str, Any]:
    """What one rank does.

    Returns
    -------
    dict
        ``kernels_us``: microseconds of each kernel of the step, in order, means over ranks;
        ``contention``. The same on every rank.
    """
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    if spec["needs_library"]:
        load_library()
    module = tvm.runtime.load_module(str(folder / "step.so"))
    machine = relax.VirtualMachine(module, tvm.cpu())
    rng = np.random.default_rng(0)
    arguments = [_value(shape, dtype, rng) for shape, dtype in spec["params"]]
    session = Session(loopback())
    rows = []
    for _ in range(_NUM_WARMUP + _NUM_STEPS):
        communicator.barrier()
        with session.recording_kernels(machine), session.step():
            machine["main"](*arguments)
        kernels = session.events().of(EventKind.KERNEL)
        rows.append((kernels[:, 3] - kernels[:, 2]) / 1e3)
    # Whatever else runs on the machine only ever adds to a time.
    quartiles = np.percentile(rows[_NUM_WARMUP:], 25, axis=0)
    means = np.mean(communicator.allgather(quartiles), axis=0)

    def step() -> None:
        with session.step():
            machine["main"](*arguments)

    return {"kernels_us": means.tolist(), "contention": _contention(communicator, step)}


def _contention(communicator: Communicator, step: Callable[[], None]) -> float:
    """Of a step that sends nothing."""
    if communicator.world_size == 1:
        return 1.0

    def measure(num_bytes: int) -> list[tuple[float, ...]]:
        return [
            (time_alone(communicator, step), *time_beside(communicator, step, num_bytes))
            for _ in range(_NUM_BESIDE)
        ]

    rows = outlasting(communicator, _FIRST_BYTES, measure)
    quartiles = np.percentile(communicator.allgather(rows), 25, axis=1)
    alone_us, beside_us, _ = np.mean(quartiles, axis=0)
    return max(float(beside_us / alone_us), 1.0)


def _value(shape: list[int], dtype: str, rng: np.random.Generator) -> Any:
    """Small positive floats, zeros for all else: valid as index, count and mask."""
    if np.dtype(dtype).kind == "f":
        value = np.asarray(np.abs(rng.standard_normal(shape)) * _SCALE, dtype)
        return tvm.runtime.tensor(value)
    return tvm.runtime.tensor(np.zeros(shape, dtype))


def main() -> None:
    """The program of one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    num_ranks = json.loads((folder / "spec.json").read_text(encoding="utf-8"))["num_ranks"]
    communicator = loopback() if num_ranks == 1 else mpi()
    with abort_on_error(communicator):
        measured = measure_step(folder, communicator)
        if communicator.rank == 0:
            (folder / "times.json").write_text(json.dumps(measured), encoding="utf-8")
    communicator.close()


if __name__ == "__main__":
    main()
