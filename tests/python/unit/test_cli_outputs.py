"""No command overwrites what it reads; results are whole or not there; a full disk is named."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from graphs import fork

from disco_fuse.cli.guard import guarded
from disco_fuse.cli.main import main
from disco_fuse.cli.output import why_unwritable
from disco_fuse.files import replacing, write_text
from disco_fuse.fuse_ops import Emission
from disco_fuse.trainer import EventLog
from disco_fuse.tuning import Problem

TINY = ("--max-steps", "20", "--threads", "1")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a strategy in ``t`` and two traces."""
    emission = Emission(groups=((0, 1),), order=(0, 1, 2, 3, 4))
    Problem(name="fork", graph=fork(), emission=emission).save(tmp_path / "problem.json.gz")
    monkeypatch.chdir(tmp_path)
    done = run("tune", "--problem", "problem.json.gz", "-O", "t", *TINY)
    assert done.exit_code == 0, done.output
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"schemaVersion": 1, "traceEvents": []}')
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("advise --json a.json b.json", "a.json is a trace, and would be overwritten"),
        ("advise a.json --json a.json", "a.json is a trace"),
        ("compare t t --json t/strategy.json", "t/strategy.json belongs to the strategy or plan"),
        ("show t --json t/strategy.json", "t/strategy.json belongs to the strategy or plan"),
        ("tune --problem t/problem.json.gz --report t/problem.json.gz", "gz is an input"),
        ("tune --problem t/problem.json.gz --events t/strategy.json", "belongs to the strategy"),
        ("tune --problem problem.json.gz --json x.json --report x.json", "are both x.json"),
        ("tune --problem problem.json.gz --json x.json --report ./x.json", "are both x.json"),
        ("tune --problem problem.json.gz -O . --json strategy.json", "strategy.json belongs to"),
        ("tune --problem problem.json.gz -O t --json t/events.json", None),
        ("graphs --json bert gpt2", "bert must end in .json, or be '-'"),
        ("extract bert_small -O t/problem.json.gz", "belongs to the strategy or plan"),
        ("tune --problem problem.json.gz --report /dev/null --json /dev/null --max-steps 9", None),
    ],
)
def test_outputs_are_not_inputs(line: str, message: str | None, place: Path) -> None:
    before = contents(place)
    done = run(*line.split())
    if message is None:
        assert done.exit_code == 0, done.output
        return
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
    assert contents(place) == before


def test_the_same_result_may_be_written_again(place: Path) -> None:
    for _ in range(2):
        done = run("show", "t", "--json", "shown.json")
        assert done.exit_code == 0, done.output
    assert json.loads((place / "shown.json").read_text())["makespan_us"] > 0


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    write_text(file, "old")

    def fail() -> None:
        with replacing(file) as temporary:
            assert temporary.suffix == ".json"
            temporary.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*file.json'"):
        fail()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
    link = tmp_path / "link.json"
    link.symlink_to(file)
    write_text(link, "new")
    assert (link.is_symlink(), file.read_text()) == (True, "new")


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("option", ["--json", "--report", "-O"])
def test_a_full_disk_is_said_of_the_output(
    option: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_text", full_disk)
    name = {"--json": "x.json", "--report": "x.html", "-O": "x"}[option]
    done = run("tune", "--problem", "problem.json.gz", option, name, *TINY)
    assert done.exit_code == 1, done.output
    file = "x/strategy.json" if option == "-O" else name
    assert done.stderr.splitlines()[-1] == f"Error: {file}: No space left on device"
    assert not (place / file).exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_events_that_cannot_be_written_cost_no_result(place: Path) -> None:
    (place / "events.jsonl").symlink_to("/dev/full")
    done = run("tune", "--problem", "problem.json.gz", "--events", "events.jsonl", *TINY)
    assert done.exit_code == 1, done.output
    assert "| stopped by " in done.stdout
    assert "Error: events.jsonl: No space left on device: later events are" in done.stderr
    log = EventLog(place / "events.jsonl")
    log({"event": "start", "step": 0})
    assert log.failure is not None


def test_standard_output_that_is_full() -> None:
    import click

    @click.command()
    def work() -> None:
        full_disk()

    done = CliRunner().invoke(guarded(work), [])
    assert done.exit_code == 1
    assert done.stderr == "Error: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tune --problem problem.json.gz -O LONG", "-O: cannot write to n"),
        ("tune --problem problem.json.gz -O x/y/LONG", "-O: cannot write to x/y/n"),
        ("tune --problem problem.json.gz --events LONG/x", "--events: cannot write to n"),
        ("build-all --cache LONG", "cannot write to --cache n"),
        ("tune --problem LONG", "File name too long"),
        ("advise LONG", "File name too long"),
    ],
)
def test_names_that_are_too_long(line: str, message: str, place: Path) -> None:
    before = sorted(place.rglob("*"))
    done = run(*line.replace("LONG", 300 * "n").split())
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert sorted(place.rglob("*")) == before


def test_a_folder_that_cannot_be_made_leaves_no_other(tmp_path: Path) -> None:
    assert why_unwritable(tmp_path / "x" / "y" / (300 * "n")) == os.strerror(errno.ENAMETOOLONG)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_without_ops(place: Path) -> None:
    data = json.loads(gzip.decompress((place / "problem.json.gz").read_bytes()))
    data["graph"] = {"ops": [], "edges": [], "external_reads": []}
    data |= {"groups": [], "order": []}
    (place / "empty.json").write_text(json.dumps(data))
    for line in ("tune --problem empty.json", "whatif --problem empty.json --world-size 2,4"):
        done = run(*line.split())
        assert done.exit_code == 1, done.output
        assert "has no ops: there is nothing to tune" in done.stderr
