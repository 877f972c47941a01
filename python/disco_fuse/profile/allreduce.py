"""Measures what AllReduce costs a step that computes; run as a module, it is the rank program.

The simulator knows one curve (how long a message is under way) and one factor (by how much compute
is slower meanwhile). Measured are, for each size, the time under way ``f`` and what is stolen from
compute, ``s``. Compute that goes at 1 / contention for ``f`` loses ``f (1 - 1 / contention)``, so
the factor follows from the median of ``s / f`` over the larger half of the sizes. A small message
steals more than that, since it is under way for less than the thread takes to wake up: the time of
one of the smaller half is raised until the loss is ``s``, for compute is what a step runs out of.
The larger half is left alone: there a larger ``s / f`` is noise, and raising would keep only the
noise of one sign (unless a message steals more than all of its time, which no factor can say).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.launch import run
from disco_fuse.runtime import MessageCost, abort_on_error, measure_beside_compute, mpi

# From a bias to all gradients of a small model; the model is fitted in two segments.
DEFAULT_SIZES_BYTES = tuple(4096 * 4**i for i in range(7))
_REPEATS = 15
_TIMEOUT_S = 300.0
# A message that takes more than this share of a core has not overlapped at all.
_MOST_STOLEN = 0.9

RunRanks = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, kw_only=True)
class TransportProfile:
    """AllReduce as a step pays for it; fields of a ClusterSpec.

    Attributes
    ----------
    allreduce : AllReduceModel
        Time under way while the ranks compute.
    contention : float
        Factor >= 1 by which compute is slower meanwhile.
    """

    allreduce: AllReduceModel
    contention: float

    @classmethod
    def fit(cls, costs: Sequence[MessageCost]) -> TransportProfile:
        """From measurements of at least two sizes (the formula stands at the top of this file)."""
        flight = np.array([cost.flight_us for cost in costs])
        stolen = np.array([cost.stolen_us for cost in costs])
        order = np.argsort([cost.num_bytes for cost in costs])
        smaller, larger = np.split(order, [len(costs) // 2])
        share = min(float(np.median((stolen / flight)[larger])), _MOST_STOLEN)
        flight = np.maximum(flight, stolen / _MOST_STOLEN)
        if share > 0:
            flight[smaller] = np.maximum(flight[smaller], stolen[smaller] / share)
        return cls(
            allreduce=AllReduceModel.fit([cost.num_bytes for cost in costs], flight),
            contention=1 / (1 - share),
        )


def profile_allreduce(
    num_ranks: int,
    sizes_bytes: tuple[int, ...] = DEFAULT_SIZES_BYTES,
    run_ranks: RunRanks = run,
) -> TransportProfile:
    """AllReduce between ``num_ranks`` ranks that compute at the same time.

    One rank exchanges nothing, so its AllReduce costs nothing.

    Parameters
    ----------
    run_ranks : callable
        Starts the ranks: :func:`disco_fuse.launch.run` or something with its signature.

    Raises
    ------
    ValueError
        ``num_ranks`` is below one or above the number of slots.
    RuntimeError
        The measurement failed; the ranks have printed why.
    """
    if num_ranks == 1:
        free = AllReduceModel.linear(latency_us=0.0, us_per_byte=0.0)
        return TransportProfile(allreduce=free, contention=1.0)
    with tempfile.TemporaryDirectory(prefix="df-") as folder:
        output = Path(folder) / "allreduce.json"
        program = ["-m", "disco_fuse.profile.allreduce", "--output", str(output)]
        program += [str(size) for size in sizes_bytes]
        finished = run_ranks(program, num_ranks, timeout_s=_TIMEOUT_S)
        if finished.returncode != 0:
            raise RuntimeError(f"measuring AllReduce ended with status {finished.returncode}")
        measured = json.loads(output.read_text(encoding="utf-8"))
    return TransportProfile.fit([MessageCost(**row) for row in measured])


def main() -> None:
    """The program of one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="+", help="message sizes in bytes")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    communicator = mpi()
    with abort_on_error(communicator):
        measured = measure_beside_compute(communicator, arguments.sizes, _REPEATS)
        if communicator.rank == 0:
            rows = [asdict(cost) for cost in measured]
            arguments.output.write_text(json.dumps(rows), encoding="utf-8")
    communicator.close()


if __name__ == "__main__":
    main()
