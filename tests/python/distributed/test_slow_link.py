"""Ranks in network namespaces on shaped links, and that nothing is left of them."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import LIMIT_S, RunRanks
from disco_fuse.slow_link import rate_bytes_per_us, slow_link, why_unavailable

RANKS = str(Path(__file__).parent / "ranks.py")


@pytest.fixture(scope="module")
def links() -> None:
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)


def spaces_of(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(f"df{pid}n")]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_are_as_slow_as_their_links(
    links: None,  # noqa: ARG001
    run_ranks: RunRanks,  # noqa: ARG001 - skips without mpirun
    num_ranks: int,
) -> None:
    num_bytes = 4 << 20
    with slow_link(num_ranks, "200mbit") as link:
        done = link.run([RANKS, "measured_4mb"], num_ranks, timeout_s=LIMIT_S, capture=True)
        assert done.returncode == 0, done
        rows = [line for line in done.stdout.splitlines() if "measured" in line]
        assert len(rows) == num_ranks
        ((size, time_us, _),) = ast.literal_eval(rows[0].partition("measured ")[2])
    assert size == num_bytes
    # A ring sends 2 (n - 1) / n of the bytes through every link.
    ideal_us = 2 * (num_ranks - 1) / num_ranks * num_bytes / rate_bytes_per_us("200mbit")
    assert time_us > 0.95 * ideal_us
    assert spaces_of(os.getpid()) == []


def test_nothing_is_left_after_the_owner_was_killed(links: None) -> None:  # noqa: ARG001
    program = (
        "import time\n"
        "from disco_fuse.slow_link import slow_link\n"
        "with slow_link(2, '1gbit') as link:\n"
        "    print('up', flush=True)\n"
        "    link.run(['-c', 'import time; time.sleep(600)'], 2)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert len(spaces_of(owner.pid)) == 3
        deadline = time.monotonic() + LIMIT_S
        while not processes_in(owner.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        inside = processes_in(owner.pid)
        assert inside
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        deadline = time.monotonic() + 30.0
        while spaces_of(owner.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert spaces_of(owner.pid) == []
    assert [pid for pid in inside if os.path.exists(f"/proc/{pid}/exe")] == []


def processes_in(owner: int) -> list[int]:
    done = subprocess.run(
        ["ip", "netns", "pids", f"df{owner}n1"], capture_output=True, text=True, check=True
    )
    return [int(pid) for pid in done.stdout.split()]


@pytest.mark.parametrize("rate", ["", "1", "fast", "0mbit", "1.5gbit", "-1gbit", "1kbit"])
def test_a_wrong_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="allowed: '1gbit'"), slow_link(2, rate):
        pass


def test_too_many_ranks_are_refused(links: None) -> None:  # noqa: ARG001
    with pytest.raises(ValueError, match="num_ranks is 0; allowed: 1 to 64"), slow_link(0, "1gbit"):
        pass
    with slow_link(1, "1gbit") as link, pytest.raises(ValueError, match="allowed on this link"):
        link.run(["x.py"], 2)


def test_payload_of_a_link() -> None:
    assert rate_bytes_per_us("1gbit") == pytest.approx(125 * 1448 / 1514)
    assert rate_bytes_per_us("200mbit") == pytest.approx(25 * 1448 / 1514)
