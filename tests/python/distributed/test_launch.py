"""The mpirun command and the end of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import RunRanks, assert_none_left, pids_in
from disco_fuse import launch
from disco_fuse.mpirun import mpirun_command

RANKS = str(Path(__file__).parent / "ranks.py")


@pytest.mark.parametrize("num_ranks", [0, -2])
def test_too_few_ranks(num_ranks: int) -> None:
    with pytest.raises(ValueError, match=rf"num_ranks is {num_ranks}; allowed: 1 to \d+$"):
        mpirun_command(["x.py"], num_ranks)


def test_more_ranks_than_cores_or_slots() -> None:
    cores = os.cpu_count() or 1
    with pytest.raises(ValueError, match=f"allowed: 1 to {cores}; oversubscribe=True"):
        mpirun_command(["x.py"], cores + 1)
    with pytest.raises(ValueError, match="num_ranks is 6; allowed: 1 to 5"):
        mpirun_command(["x.py"], 6, hosts={"a": 2, "b": 3})


def test_one_rank_needs_no_mpirun() -> None:
    argv, env = mpirun_command(["x.py", "--flag"], 1)
    assert argv == [sys.executable, "x.py", "--flag"]
    assert env["OMP_NUM_THREADS"] == "1"
    done = launch.run(["-c", "print('alone')"], 1, capture=True)
    assert (done.returncode, done.stdout) == (0, "alone\n")


def test_timeout_leaves_no_process(run_ranks: RunRanks) -> None:  # noqa: ARG001
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        launch.run([RANKS, "hangs"], 2, timeout_s=20, capture=True, oversubscribe=True)
    pids = pids_in(caught.value.stdout)
    assert len(pids) == 2
    assert_none_left(pids)


def test_interrupt_leaves_no_process(run_ranks: RunRanks, tmp_path: Path) -> None:  # noqa: ARG001
    """Ctrl-C in a program that called launch.run, as the terminal sends it."""
    # A shell that runs the tests in the background makes its children ignore Ctrl-C.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from disco_fuse import launch; launch.run([{!r}, 'hangs'], 2, oversubscribe=True)"
    )
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-c", program.format(RANKS)], stdout=out)
    deadline = time.monotonic() + 30
    while log.read_text().count("hangs") < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(15) != 0
    pids = pids_in(log.read_text())
    assert len(pids) == 2
    assert_none_left(pids)


def test_stubborn_single_program_is_killed_with_its_children() -> None:
    program = (
        "import signal, subprocess, sys, os, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " process_group=0);"
        "print('pid', os.getpid()); print('pid', child.pid, flush=True); time.sleep(60)"
    )
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        launch.run(["-c", program], 1, timeout_s=2, capture=True)
    pids = pids_in(caught.value.stdout)
    assert len(pids) == 2
    assert_none_left(pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_the_process_that_launched_them(
    run_ranks: RunRanks,  # noqa: ARG001
    number: signal.Signals,
) -> None:
    program = (
        f"from disco_fuse import launch; launch.run([{RANKS!r}, 'hangs'], 2, oversubscribe=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        pids = [int(launcher.stdout.readline().split()[1]) for _ in range(2)]
        launcher.send_signal(number)
        deadline = time.monotonic() + 20.0
        while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
            assert time.monotonic() < deadline, f"ranks {pids} outlive their launcher"
            time.sleep(0.1)
