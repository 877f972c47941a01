"""``disco-fuse run``: one program, started alone, by mpirun, and ended by signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from conftest import LIMIT_S, require_mpirun, run_to_end
from disco_fuse import launch
from disco_fuse.mpirun import mpirun_command

NUMBERS = Path(__file__).parents[1] / "shared" / "numbers_data.py"
COMMAND = [sys.executable, "-m", "disco_fuse.cli", "run"]


@pytest.fixture(scope="module", autouse=True)
def _mpirun() -> None:
    require_mpirun()


def options_of(trained_plan: Path, data: str = "Numbers") -> list[str]:
    plan = trained_plan / "plan"
    return [str(plan), "--values", str(plan / "values.npz"), "--data", f"{NUMBERS}:{data}"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


def under_mpirun(words: Sequence[str], num_ranks: int = 2) -> subprocess.CompletedProcess[str]:
    return launch.run(
        ["-m", "disco_fuse.cli", "run", *words],
        num_ranks,
        timeout_s=LIMIT_S,
        capture=True,
        oversubscribe=True,
    )


def events(folder: Path, rank: int) -> list[dict[str, object]]:
    lines = (folder / f"events-rank-{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_alone_and_under_mpirun_it_is_the_same_program(trained_plan: Path, tmp_path: Path) -> None:
    """Begun by the first, gone on with by the second."""
    words = [*options_of(trained_plan), "--checkpoints", str(tmp_path / "checkpoints"), "-O",
             str(tmp_path), "--every", "2"]  # fmt: skip
    first = run(*words, "-n", "2", "--oversubscribe", "--steps", "3")
    assert first.returncode == 0, first
    (row,) = re.findall(r"^\| default .*$", first.stdout, re.MULTILINE)
    assert [cell.strip() for cell in row.split("|")[1:4]] == ["default", "2", "3"]
    second = under_mpirun([*words, "--steps", "5", "--json", str(tmp_path / "result.json")])
    assert second.returncode == 0, second
    assert "resumed from" in second.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["world_size"], result["step"], result["stop_reason"]) == (2, 5, "steps")
    for rank in range(2):
        own = events(tmp_path, rank)
        steps = [event for event in own if event["event"] == "step"]
        assert [event["step"] for event in steps] == [1, 2, 3, 4, 5]
        assert [event["loss"] for event in steps[3:]] == result["losses"]
        assert [event["rank"] for event in own if event["event"] == "start"] == [rank, rank]
    assert run(*words, "-n", "1", "--steps", "6").stderr.endswith(
        "holds values of each of 2 ranks (data positions or local buffers), and there are 1 now\n"
    )


def test_trace_shows_all_ranks(trained_plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "step.trace.json"
    words = [*options_of(trained_plan), "--steps", "4", "--trace", str(file)]
    done = run(*words, "-n", "2", "--oversubscribe", "--json", str(tmp_path / "result.json"))
    assert done.returncode == 0, done
    assert "| exposed ms |" in done.stdout
    traced = json.loads((tmp_path / "result.json").read_text())["trace"]
    assert min(traced["kernels_ms"], traced["exposed_ms"], traced["overhead_ms"]) > 0
    # The tests' plan was never simulated.
    assert (traced["simulated_exposed_ms"], traced["file"]) == (None, str(file))
    spans = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    buckets = []
    for rank in range(2):
        own = [event for event in spans if event["pid"] == rank]
        names = [event["name"] for event in own]
        assert names.count("step") == 1
        assert names.count("wait") == names.count("allreduce") > 0
        assert len(own) > 2 * names.count("wait") + 10
        buckets.append({e["args"]["bucket"]: e for e in own if e["name"] == "allreduce"})
    # A bucket travels at one time, to within what the clocks of the ranks may be apart.
    for bucket, one in buckets[0].items():
        other = buckets[1][bucket]
        last_start = max(one["ts"], other["ts"])
        first_end = min(one["ts"] + one["dur"], other["ts"] + other["dur"])
        assert last_start - first_end < traced["clock_error_us"] + 100.0


def test_trace_that_cannot_be_written(trained_plan: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = [*options_of(trained_plan), "--steps", "1", "--trace", str(tmp_path / "file" / "x")]
    done = under_mpirun(words)
    assert done.returncode == 1
    (message,) = re.findall(r"^Error: .*$", done.stderr, re.MULTILINE)
    assert "File exists" in message
    assert "Traceback" not in done.stderr


def test_nan_is_a_failure(trained_plan: Path) -> None:
    done = under_mpirun(options_of(trained_plan, "spoiled_numbers"))
    assert done.returncode == 1
    assert "nan: the loss of step 2 is nan on rank 1" in done.stderr


def test_refused_plan_is_refused_on_every_rank(trained_plan: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes((trained_plan / "plan" / "plan.json").read_bytes())
    (tmp_path / "step.so").write_bytes(b"another step")
    done = under_mpirun([str(tmp_path), "-O", str(tmp_path / "events")])
    assert done.returncode == 1
    (message,) = re.findall(r"^Error: .*$", done.stderr, re.MULTILINE)
    for rank in range(2):
        assert f"rank {rank}: {tmp_path}/step.so is not the file" in message
    assert not (tmp_path / "events").exists()


def test_data_that_cannot_be_imported_is_a_wrong_call(trained_plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("1 / 0\n")
    words = [str(trained_plan / "plan"), "--data", f"{file}:batches"]
    done = run(*words, "-n", "2", "--oversubscribe")
    assert done.returncode == 2, done
    (message,) = re.findall(r"^Error: .*$", done.stderr, re.MULTILINE)
    for rank in range(2):
        assert f"rank {rank}: the import of {file} raised ZeroDivisionError at" in message
    assert "Traceback" not in done.stderr
    file.write_text("def batches(rank, world_size):\n    raise OSError('no disk')\n")
    failed = run(*words)
    assert failed.returncode == 1
    assert f"{file}:batches raised OSError at {file}, line 2: no disk" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize("how", ["SIGTERM to the program", "SIGUSR1 to mpirun"])
def test_signal_ends_all_ranks_with_a_checkpoint(
    how: str, trained_plan: Path, tmp_path: Path
) -> None:
    words = [*options_of(trained_plan, "slow_numbers"), "--checkpoints", str(tmp_path / "saved"),
             "-O", str(tmp_path), "--steps", "100000"]  # fmt: skip
    argv, env = [*COMMAND, *words, "-n", "2", "--oversubscribe"], {}
    if how == "SIGUSR1 to mpirun":
        program = ["-m", "disco_fuse.cli", "run", *words]
        argv, env = mpirun_command(program, 2, oversubscribe=True)
    number = signal.SIGTERM if how.startswith("SIGTERM") else signal.SIGUSR1
    with subprocess.Popen(
        argv, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        log = tmp_path / "events-rank-1.jsonl"
        deadline = time.monotonic() + LIMIT_S
        while not (log.is_file() and '"step": 3' in log.read_text()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143, stderr
    ends = [events(tmp_path, rank)[-1] for rank in range(2)]
    assert ends[0] == ends[1]
    assert (ends[0]["event"], ends[0]["reason"]) == ("end", "terminated")
    (saved,) = (tmp_path / "saved").iterdir()
    assert saved.name == f"step-{ends[0]['step']:09d}.checkpoint"


def test_rank_that_never_comes(trained_plan: Path) -> None:
    plan = str(trained_plan / "plan")
    begin = time.monotonic()
    done = run_to_end("late_rank.py", "run", plan, "--start-timeout", "2")
    assert done.returncode != 0
    assert "Timeout (0:00:02)!" in done.stderr
    assert "runtime/communicator.py" in done.stderr
    assert time.monotonic() - begin < LIMIT_S


def test_one_rank_needs_no_mpirun(trained_plan: Path) -> None:
    done = run(*options_of(trained_plan), "--steps", "2", "--json", "-")
    assert done.returncode == 0, done
    assert "note: the plan was optimised for 2 ranks, this job has 1" in done.stderr
    assert json.loads(done.stdout)["world_size"] == 1
