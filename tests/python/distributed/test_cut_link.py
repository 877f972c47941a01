"""A cable that is pulled: for three seconds, and for good."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import LIMIT_S, assert_none_left, pids_in, require_mpirun
from disco_fuse.launch import HostLostError
from disco_fuse.slow_link import SlowLink, slow_link, why_unavailable

PROGRAM = str(Path(__file__).parent / "cut_link.py")
CUT_S = 3.0


@pytest.fixture
def link() -> Iterator[SlowLink]:
    require_mpirun()
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    with slow_link(2, "200mbit") as up:
        yield up


def set_cable(link: SlowLink, state: str) -> None:
    """Rank 1's end of the cable at the switch: "up" or "down"."""
    command = f"ip -n {link.name}sw link set p1 {state}".split()
    subprocess.run(command, check=True)


def steps_done(folder: Path) -> int:
    file = folder / "rank-1"
    return int(file.read_text() or 0) if file.exists() else 0


def once_it_runs(folder: Path, action: Callable[[], None]) -> threading.Thread:
    """Do something, in a thread, when rank 1 has done ten steps."""

    def wait() -> None:
        deadline = time.monotonic() + LIMIT_S
        while steps_done(folder) < 10 and time.monotonic() < deadline:
            time.sleep(0.05)
        action()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_short_cut_is_survived(link: SlowLink, tmp_path: Path) -> None:
    done_when_cut: list[int] = []

    def cut() -> None:
        set_cable(link, "down")
        time.sleep(0.5)
        done_when_cut.append(steps_done(tmp_path))
        time.sleep(CUT_S - 0.5)
        done_when_cut.append(steps_done(tmp_path))
        set_cable(link, "up")

    thread = once_it_runs(tmp_path, cut)
    done = link.run([PROGRAM, str(tmp_path), "60", "200"], 2, timeout_s=LIMIT_S, capture=True)
    thread.join()
    assert done.returncode == 0, done
    # It did stand still, and then did the rest with the right averages.
    assert done_when_cut[0] == done_when_cut[1] < 200
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == ["200", "200"]
    assert_none_left(pids_in(done.stdout))


def test_a_cut_for_good_ends_the_job_and_names_the_bucket(link: SlowLink, tmp_path: Path) -> None:
    moments: list[float] = []

    def cut() -> None:
        set_cable(link, "down")
        moments.append(time.monotonic())

    thread = once_it_runs(tmp_path, cut)
    with pytest.raises(HostLostError, match="waited 2 s more for a host") as caught:
        link.run(
            [PROGRAM, str(tmp_path), "3", "1000000"],
            2,
            timeout_s=LIMIT_S,
            capture=True,
            straggler_s=2.0,
        )
    seconds = time.monotonic() - moments[0]
    thread.join()
    # Its timeout, the launcher's patience and grace, and as much again for a busy machine.
    assert seconds < 30.0
    assert caught.value.stdout is not None
    assert caught.value.stderr is not None
    assert "bucket 7 on rank 0 of 2: nothing moved for 3 s" in caught.value.stderr
    assert "missing from rank 1" in caught.value.stderr
    pids = pids_in(caught.value.stdout)
    assert len(pids) == 2
    assert_none_left(pids)
