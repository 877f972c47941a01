"""Starts the ranks of a test and checks that none outlives it."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from disco_fuse import launch
from disco_fuse.mpirun import find_mpirun

HERE = Path(__file__).parent
# A job that dies by itself must have ended long before this one is used.
LIMIT_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A job that has ended."""

    returncode: int
    stdout: str
    stderr: str
    ended_at: float  # time.time()

    def lines(self, pattern: str) -> list[str]:
        """What `pattern`'s group matched, line by line."""
        return re.findall(pattern, self.stdout, re.MULTILINE)

    def seconds_to_end(self) -> float:
        """From when a rank said that it ends the run."""
        (moment,) = self.lines(r"^rank \d+: ends at (.*)$")
        return self.ended_at - float(moment)

    def says_rank_died(self, rank: int) -> bool:
        """Whether mpirun tells of it: Open MPI by the rank's number, MPICH by its process."""
        said = self.stdout + self.stderr
        return f"process rank {rank} " in said or "BAD TERMINATION" in said


def pids_in(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"^pid (\d+)$", output, re.MULTILINE)]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and os.path.exists(f"/proc/{pid}/exe")


def assert_none_left(pids: list[int]) -> None:
    deadline = time.monotonic() + 2.0
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in pids if is_alive(pid)] == []


RunRanks = Callable[..., Finished]


def require_mpirun() -> None:
    """Skip where ranks cannot be started."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed (extra: mpi)")
    try:
        find_mpirun()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def run_to_end(script: str, *args: str, num_ranks: int = 2) -> Finished:
    """Run a script of this folder on ranks; none of them may be left."""
    done = launch.run(
        [str(HERE / script), *args],
        num_ranks,
        timeout_s=LIMIT_S,
        capture=True,
        oversubscribe=True,
    )
    ended_at = time.time()
    pids = pids_in(done.stdout)
    assert len(pids) == num_ranks, done
    assert_none_left(pids)
    return Finished(
        returncode=done.returncode, stdout=done.stdout, stderr=done.stderr, ended_at=ended_at
    )


@pytest.fixture
def run_ranks() -> RunRanks:
    """``run_ranks(script, *args, num_ranks=2)`` runs a script of this folder to its end."""
    require_mpirun()
    return run_to_end


@pytest.fixture(scope="session")
def trained_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``plan`` is a small plan with ``values.npz``, for two ranks."""
    pytest.importorskip("torch", reason="plans come from torch models")
    from training_plans import small_workload, write_training_plan

    folder = tmp_path_factory.mktemp("trained")
    write_training_plan(small_workload(), folder / "plan", buffers="local")
    return folder
