"""Measures AllReduce over the transport of a step; run as a module, it is the rank program."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.launch import run
from disco_fuse.runtime import abort_on_error, measure_allreduce, mpi

# From a bias to all gradients of a small model; the model is fitted in two segments.
DEFAULT_SIZES_BYTES = tuple(4096 * 4**i for i in range(7))
_REPEATS = 15
_TIMEOUT_S = 120.0


def profile_allreduce(
    num_ranks: int, sizes_bytes: tuple[int, ...] = DEFAULT_SIZES_BYTES
) -> AllReduceModel:
    """Fit of AllReduce times of ``num_ranks`` ranks on this machine.

    One rank exchanges nothing, so its AllReduce costs nothing.

    Raises
    ------
    ValueError
        ``num_ranks`` is below one or above the number of slots.
    RuntimeError
        The measurement failed; the ranks have printed why.
    """
    if num_ranks == 1:
        return AllReduceModel.linear(latency_us=0.0, us_per_byte=0.0)
    with tempfile.TemporaryDirectory(prefix="df-") as folder:
        output = Path(folder) / "allreduce.json"
        program = ["-m", "disco_fuse.profile.allreduce", "--output", str(output)]
        program += [str(size) for size in sizes_bytes]
        finished = run(program, num_ranks, timeout_s=_TIMEOUT_S)
        if finished.returncode != 0:
            raise RuntimeError(f"measuring AllReduce ended with status {finished.returncode}")
        measured = json.loads(output.read_text(encoding="utf-8"))
    return AllReduceModel.fit([m["bytes"] for m in measured], [m["us"] for m in measured])


def main() -> None:
    """The program of one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="+", help="message sizes in bytes")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    communicator = mpi()
    with abort_on_error(communicator):
        measured = measure_allreduce(communicator, arguments.sizes, _REPEATS)
        if communicator.rank == 0:
            rows = [{"bytes": size, "us": median} for size, median, _ in measured]
            arguments.output.write_text(json.dumps(rows), encoding="utf-8")
    communicator.close()


if __name__ == "__main__":
    main()
