"""What is measured of a machine: once, stably, and with nothing lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from disco_fuse.cli.main import main
from disco_fuse.config import DeviceSpec
from disco_fuse.extract import extract
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.profile import ProfileDatabase, Sample, kernels, machine
from disco_fuse.profile.contention import PATTERNS, load_contention, profile_contention
from disco_fuse.profile.kernels import is_stable, profile_key, profile_ops, profiled_samples
from disco_fuse.profile.messages import (
    SIZES_BYTES,
    fit_costs,
    link_key,
    load_costs,
    profile_messages,
)
from disco_fuse.target import host_target
from disco_fuse.testing import mlp_step

SMALL = (4096, 65536, 2**20, 2**22)


def test_a_median_is_stable_once_its_confidence_is_narrow() -> None:
    assert is_stable([10.0] * 6)
    assert not is_stable([10.0] * 5)
    assert not is_stable([10.0, 20.0] * 5)
    # Outliers do not count, since the order statistics near the middle decide.
    assert is_stable([10.0] * 40 + [1000.0] * 5)
    values = [10 + 0.1 * (i % 7) for i in range(50)]
    assert is_stable(values, 0.05)
    assert not is_stable(values, 0.001)


def lowered() -> tuple[Any, Any]:
    mod = lower(InsertAllReduce()(mlp_step()), host_target(), library=False)
    return mod, extract(mod)


def test_only_what_is_new_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_TIME_PER_KERNEL_S", 0.0)
    monkeypatch.setattr(kernels, "_MOST_TIME_S", 0.0)
    mod, extraction = lowered()
    target, measured = host_target(), list[str]()

    def progress(done: int, total: int, name: str) -> None:
        assert 1 <= done <= total
        measured.append(name)

    with ProfileDatabase(None) as database:
        times = profile_ops(mod, extraction, target, database, progress)
        known = profiled_samples(extraction, target, database)
        assert len(measured) == len(known) > 3
        assert profile_ops(mod, extraction, target, database, progress).tolist() == times.tolist()
        assert len(measured) == len(known)


def test_a_kernel_that_takes_no_time_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mod, extraction = lowered()
    monkeypatch.setattr(kernels, "_time_kernel", lambda *_: kernels._repeat(lambda _: 0.0))
    with (
        ProfileDatabase(None) as database,
        pytest.raises(ValueError, match=r"lv\S* takes no time that the clock of this machine"),
    ):
        profile_ops(mod, extraction, host_target(), database)


def test_a_wildly_varying_kernel_is_measured_longer_but_not_for_ever() -> None:
    calm = kernels._repeat(lambda _: 5.0)
    wild = kernels._repeat(lambda i: 5.0 if i % 2 else 500.0)
    assert wild.repeats == kernels._MAX_REPEATS
    assert wild.p90_us == 500.0
    assert (calm.p10_us, calm.p90_us) == (5.0, 5.0)


def test_what_was_measured_before_a_process_died_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    program = (
        "import os, signal\n"
        "from disco_fuse.profile import ProfileDatabase, profile_ops\n"
        "from disco_fuse.target import host_target\n"
        "from test_machine_profile import lowered\n"
        "mod, extraction = lowered()\n"
        "def progress(done, total, name):\n"
        "    if done == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"with ProfileDatabase(__import__('pathlib').Path({str(path)!r})) as database:\n"
        "    profile_ops(mod, extraction, host_target(), database, progress)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with ProfileDatabase(path) as database:
        assert len(profiled_samples(lowered()[1], host_target(), database)) == 3


def test_the_device_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def measure(_: Any) -> DeviceSpec:
        calls.append(len(calls))
        return DeviceSpec(
            name="x", peak_gflops=50.0, bandwidth_gbps=20.0, launch_us=1.0 + len(calls), nest_us=0.5
        )

    monkeypatch.setattr(machine, "measure_device", measure)
    target = host_target()
    with ProfileDatabase(None) as database:
        device, is_new = machine.profile_device(target, database)
        assert is_new
        assert device.launch_us == pytest.approx(4.0)  # the median of five
        assert (device.peak_gflops, device.nest_us) == (pytest.approx(50.0), 0.5)
        assert machine.profile_device(target, database) == (device, False)
    assert len(calls) == 5


def ranks_that(write: Callable[[Path, list[str]], int]) -> Any:
    """Stands for the ranks: writes their file and returns their exit status."""

    def run_ranks(program: list[str], num_ranks: int, *, timeout_s: float) -> Any:
        assert num_ranks == 2
        assert timeout_s > 0
        output = program[program.index("--output") + 1] if "--output" in program else program[2]
        return SimpleNamespace(returncode=write(Path(output), program))

    return run_ranks


def line(size: int) -> str:
    flight = [10.0 + size / 1000] * 3
    return json.dumps({"num_bytes": size, "flight_us": flight, "stolen_us": [0.0] * 3}) + "\n"


def test_messages_are_measured_once_for_each_link() -> None:
    asked: list[list[int]] = []

    def write(output: Path, program: list[str]) -> int:
        sizes = [int(text) for text in program[4:]]
        asked.append(sizes)
        output.write_text("".join(map(line, sizes)), encoding="utf-8")
        return 0

    slow, fast = (link_key(host_target(), 2, link) for link in ("1gbit", "shared-memory"))
    assert slow != fast
    with ProfileDatabase(None) as database:
        assert profile_messages(database, slow, 2, SMALL, ranks_that(write)) == 4
        assert asked == [[4096, 65536, 2**20], [2**22]]  # small ones share a run
        assert profile_messages(database, slow, 2, SMALL, ranks_that(write)) == 0
        assert len(asked) == 2
        profile_messages(database, slow, 2, (*SMALL, 2**24), ranks_that(write))
        assert asked[2:] == [[2**24]]
        assert load_costs(database, fast, SMALL) == {}
        fitted = fit_costs(load_costs(database, slow, SMALL))
        assert fitted.allreduce.time_us(2**20) == pytest.approx(10 + 2**20 / 1000, rel=0.01)
    assert (min(SIZES_BYTES), max(SIZES_BYTES)) == (4 * 2**10, 256 * 2**20)


def test_ranks_that_die_lose_only_what_they_had_not_written() -> None:
    def write(output: Path, _: list[str]) -> int:
        output.write_text(line(4096) + line(65536)[:20], encoding="utf-8")
        return 3

    key = link_key(host_target(), 2, "1gbit")
    with ProfileDatabase(None) as database:
        with pytest.raises(RuntimeError, match="measuring AllReduce ended with status 3"):
            profile_messages(database, key, 2, SMALL, ranks_that(write))
        assert list(load_costs(database, key, SMALL)) == [4096]
        with pytest.raises(ValueError, match="num_ranks is 1; AllReduce needs at least 2"):
            profile_messages(database, key, 1, SMALL, ranks_that(write))


def test_contention_is_measured_once_for_each_pattern() -> None:
    seen: list[str] = []

    def write(folder: Path, _: list[str]) -> int:
        assert (folder / "kernel.so").is_file()
        seen.append(str(folder))
        times = {"alone": [2.0, 2.0], "beside": [3.0, 3.0]}
        (folder / "times.json").write_text(json.dumps(times), encoding="utf-8")
        return 0

    key = link_key(host_target(), 2, "1gbit")
    with ProfileDatabase(None) as database:
        sample = Sample.of([1.0])
        names = [f"contention {PATTERNS[0]}, {how}" for how in ("alone", "beside an AllReduce")]
        database.store(key, dict.fromkeys(names, sample))
        new = profile_contention(database, key, host_target(), 2, ranks_that(write))
        assert new == len(seen) == len(PATTERNS) - 1
        found = load_contention(database, key)
        assert list(found) == list(PATTERNS)
        assert found[PATTERNS[0]] == (sample, sample)
        assert [s.median_us for s in found[PATTERNS[1]]] == [2.0, 3.0]
        assert profile_contention(database, key, host_target(), 2, ranks_that(write)) == 0


# The command.


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["profile", *arguments])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    device = DeviceSpec(name="x", peak_gflops=50.0, bandwidth_gbps=20.0, launch_us=1.0)
    monkeypatch.setattr(machine, "measure_device", lambda _: device)


@pytest.mark.usefixtures("quick")
def test_a_second_call_says_that_nothing_is_new(tmp_path: Path) -> None:
    file = str(tmp_path / "profile.sqlite")
    first = run("-n", "1", "--database", file, "--json", "-")
    assert first.exit_code == 0, first.output
    data = json.loads(first.stdout)
    assert data["num_new"] == {"device": 1}
    assert data["environment"] == profile_key(host_target())
    assert "allreduce" not in data
    second = run("-n", "1", "--database", file)
    assert "| device  |     1 |            0 |" in second.stdout


@pytest.mark.usefixtures("quick")
def test_bad_databases_end_the_command_before_it_measures(tmp_path: Path) -> None:
    file = tmp_path / "profile.sqlite"
    file.write_bytes(b"no database" * 1000)
    done = run("-n", "1", "--database", str(file))
    assert done.exit_code == 1
    assert "is not a profile database" in done.output
    assert file.read_bytes() == b"no database" * 1000
    with ProfileDatabase(tmp_path / "locked.sqlite"):
        pass
    missing = run("-n", "1", "--database", str(tmp_path / "no" / "folder.sqlite"))
    assert missing.exit_code == 1
    assert "cannot be opened" in missing.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "no model 'nobody'"),
        (["-n", "0"], "'--ranks': 0 is not in the range"),
        (["--link", "fast"], "the rate of a link is 'fast'"),
        (["--largest", "10"], "x>=65536"),
    ],
)
def test_wrong_arguments_of_profile(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output
