"""AllReduce of many sizes, kept in the database; run as a module, it is the rank program.

    4 KiB 16 KiB ... 1 MiB | 4 MiB | 16 MiB | 64 MiB | 256 MiB      one run of the ranks each
    [batch] [batch] ... until the median over batches is stable     one line of the file per size

A run that fails loses its own sizes only, and of those not the ones that it has written.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tvm.target import Target

from disco_fuse.launch import run
from disco_fuse.profile.allreduce import RunRanks, TransportProfile
from disco_fuse.profile.database import ProfileDatabase, Sample
from disco_fuse.profile.kernels import Progress, is_stable, package_versions, profile_key
from disco_fuse.runtime import (
    Communicator,
    MessageCost,
    abort_on_error,
    measure_beside_compute,
    mpi,
)

SIZES_BYTES = tuple(4096 * 4**i for i in range(9))
"""4 KiB to 256 MiB."""

_SMALL_BYTES = 2**20  # up to here all sizes share one run of the ranks
_REPEATS = 5
_MOST_BATCHES = 8
# Messages that take longer than that are measured once: a batch takes some forty times as long.
_LONG_US = 200_000.0
_STABLE = 0.05
_TIMEOUT_S = 1800.0


def link_key(target: Target, num_ranks: int, link: str) -> str:
    """The environment under which the database keeps what is measured between ranks.

    Parameters
    ----------
    link : str
        The rate of the links, or how the ranks are joined otherwise.
    """
    versions = package_versions("mpi4py", "openmpi", "mpich")
    return f"{profile_key(target)}; {versions}; {num_ranks} ranks; {link}"


def profile_messages(
    database: ProfileDatabase,
    environment: str,
    num_ranks: int,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    run_ranks: RunRanks = run,
    progress: Progress | None = None,
) -> int:
    """Measure AllReduces beside compute, for the sizes that ``database`` lacks.

    Parameters
    ----------
    environment : str
        Of :func:`link_key`.
    run_ranks : callable
        Starts the ranks: :func:`disco_fuse.launch.run` or something with its signature.
    progress : callable, optional
        Called as ``progress(done, total, name)`` after every run of the ranks.

    Returns
    -------
    int
        Number of sizes that were measured.

    Raises
    ------
    ValueError
        More ranks than slots, or fewer than two.
    RuntimeError
        The ranks failed; they have printed why. What they had measured is in the database.
    """
    if num_ranks < 2:
        raise ValueError(f"num_ranks is {num_ranks}; AllReduce needs at least 2")
    names = {size: _names(size) for size in sizes_bytes}
    known = database.load(environment, [name for pair in names.values() for name in pair])
    missing = [size for size in sizes_bytes if not set(names[size]) <= known.keys()]
    small = [size for size in missing if size <= _SMALL_BYTES]
    runs = [small] if small else []
    runs += [[size] for size in missing if size > _SMALL_BYTES]
    done = 0
    for sizes in runs:
        with tempfile.TemporaryDirectory(prefix="df-") as folder:
            output = Path(folder) / "messages.jsonl"
            program = ["-m", "disco_fuse.profile.messages", "--output", str(output)]
            finished = run_ranks([*program, *map(str, sizes)], num_ranks, timeout_s=_TIMEOUT_S)
            if output.is_file():
                _store(database, environment, output)
        if finished.returncode != 0:
            raise RuntimeError(f"measuring AllReduce ended with status {finished.returncode}")
        done += len(sizes)
        if progress is not None:
            progress(done, len(missing), f"AllReduce of {sizes[-1]} bytes")
    return len(missing)


def load_costs(
    database: ProfileDatabase, environment: str, sizes_bytes: Sequence[int] = SIZES_BYTES
) -> dict[int, tuple[Sample, Sample]]:
    """By size: time under way and time stolen from compute, of the sizes that are known."""
    result = {}
    for size in sizes_bytes:
        flight, stolen = _names(size)
        found = database.load(environment, [flight, stolen])
        if len(found) == 2:
            result[size] = (found[flight], found[stolen])
    return result


def fit_costs(costs: dict[int, tuple[Sample, Sample]]) -> TransportProfile:
    """Curve and contention factor of what :func:`load_costs` returned, two sizes or more."""
    return TransportProfile.fit(
        [
            MessageCost(num_bytes=size, flight_us=flight.median_us, stolen_us=stolen.median_us)
            for size, (flight, stolen) in costs.items()
        ]
    )


def _names(size: int) -> tuple[str, str]:
    return f"allreduce {size} bytes, under way", f"allreduce {size} bytes, stolen"


def _store(database: ProfileDatabase, environment: str, output: Path) -> None:
    """Whole lines of the file; a rank that died may have left half of one."""
    for line in output.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            row = json.loads(line)
            flight, stolen = _names(row["num_bytes"])
            samples = {flight: Sample.of(row["flight_us"]), stolen: Sample.of(row["stolen_us"])}
            database.store(environment, samples)


def _measure(communicator: Communicator, size: int) -> list[MessageCost]:
    """Batches until their median is stable; the same on every rank, so all stop at the same one."""
    batches = measure_beside_compute(communicator, [size], 1)
    if batches[0].flight_us > _LONG_US:
        return batches
    batches = []
    while len(batches) < _MOST_BATCHES:
        batches += measure_beside_compute(communicator, [size], _REPEATS)
        if is_stable([cost.flight_us for cost in batches], _STABLE):
            break
    return batches


def main() -> None:
    """The program of one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="+", help="message sizes in bytes, ascending")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    communicator = mpi()
    with abort_on_error(communicator):
        for size in arguments.sizes:
            batches = _measure(communicator, size)
            if communicator.rank == 0:
                row = {
                    "num_bytes": size,
                    "flight_us": [cost.flight_us for cost in batches],
                    "stolen_us": [cost.stolen_us for cost in batches],
                }
                with arguments.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    communicator.close()


if __name__ == "__main__":
    main()
