"""The program before its commands: help, completion, Ctrl-C; options that all commands share."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

pytest.importorskip("torch", reason="the commands import torch models")

from click.testing import CliRunner, Result

from disco_fuse import zoo
from disco_fuse.baselines import baseline_names
from disco_fuse.cli.main import main
from disco_fuse.cli.search_bar import SearchBar
from disco_fuse.cluster import ClusterSpec, preset_names
from disco_fuse.config import SearchConfig
from disco_fuse.dashboard import Watch
from disco_fuse.search import SearchEvent
from disco_fuse_autoload.commands import COMMANDS

PROGRAM = "from disco_fuse_autoload.program import main; main()"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def program(*arguments: str, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.argv[0] = 'disco-fuse'; {before}{PROGRAM}"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_help_and_names_need_neither_tvm_nor_torch() -> None:
    before = "[sys.modules.update({name: None}) for name in ('tvm', 'torch', 'disco_fuse')]; "
    done = program("--help", before=before)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^  ([a-z]\S+)  ", done.stdout, re.MULTILINE) == list(COMMANDS)
    assert "..." not in done.stdout.partition("Commands:")[2]
    words = {"COMP_WORDS": "disco-fuse ex", "COMP_CWORD": "1"}
    done = program(before=before, _DISCO_FUSE_COMPLETE="bash_complete", **words)
    assert done.stdout.split() == ["plain,explain", "plain,extract"]
    assert re.match(r"disco-fuse, version \d", program("--version", before=before).stdout)


def test_every_command_is_there() -> None:
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
    assert main.get_command(context, "other") is None
    assert "No such command 'grph'" in run("grph").stderr


def test_ctrl_c_during_imports_ends_in_a_line() -> None:
    # The import of click raises it: the first one that the program does.
    before = (
        "import os, signal; "
        "find = lambda name, *_: name == 'click' and os.kill(os.getpid(), signal.SIGINT) or None; "
        "sys.meta_path.insert(0, type('Finder', (), {'find_spec': staticmethod(find)})); "
    )
    done = program("tune", before=before)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Aborted!\n")


def test_ctrl_c_during_the_import_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []

    def import_module(_name: str) -> Any:
        handlers.append(signal.getsignal(signal.SIGINT))
        raise ImportError("far enough")

    monkeypatch.setattr("disco_fuse_autoload.commands.importlib.import_module", import_module)
    monkeypatch.setattr(main, "commands", {})
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ImportError, match="far enough"):
        main.get_command(click.Context(main), "ops")
    assert [handler.__name__ for handler in handlers] == ["end_at_once"]
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tune gpt2", [name for name in zoo.models() if name.startswith("gpt2")]),
        ("build vit", [name for name in zoo.models() if name.startswith("vit")]),
        ("bench bert_s", ["bert_small"]),
        ("tune x --cluster ", list(preset_names())),
        ("show x --cluster dgx", ["dgx-h100"]),
        ("whatif x --device dgx-h100,clu", ["dgx-h100,cluster-a", "dgx-h100,cluster-b"]),
        ("tune x --preset ", ["paper", "reference-code", "full"]),
        ("compare x base", [f"baseline:{name}" for name in baseline_names()]),
    ],
)
def test_names_are_completed(words: str, expected: list[str]) -> None:
    # The words behind the program's name, and the number of the one that is completed.
    number = len(f"disco-fuse {words}".split(" ")) - 1
    env = {
        "_DISCO_FUSE_COMPLETE": "bash_complete",
        "COMP_WORDS": f"disco-fuse {words}",
        "COMP_CWORD": str(number),
    }
    done = CliRunner(env=env).invoke(main, prog_name="disco-fuse", standalone_mode=True)
    assert [line.partition(",")[2] for line in done.output.split()] == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tune bert_small --threads 0", "--threads must be an integer from 1"),
        (
            "tune bert_small --max-steps -1",
            "--max-steps must be an integer from 0 to 2**31 - 1, got -1",
        ),
        ("build bert_small -O x --starts 0", "--starts must be an integer from 1"),
        ("whatif bert_small --world-size 2,4 --patience 0", "--patience must be an integer"),
        ("tune bert_small --preset best", "'best' is not one of 'paper', 'reference-code', 'full'"),
        ("profile bert_small --ranks 9999", "-n 9999: this machine has"),
        ("bench bert_small --ranks 9999", "-n 9999: this machine has"),
        ("fidelity bert_small -n 0", "0 is not in the range"),
        ("extract bert_small", "Missing option '-O'"),
    ],
)
def test_wrong_calls_name_options(line: str, message: str) -> None:
    done = run(*line.split())
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
    assert "SearchConfig" not in done.stderr


class Lines:
    """A terminal that keeps what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def write(self, text: str) -> None:
        self.drawn.append(text.strip())

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


def event(number: int, *, improved: bool = False) -> SearchEvent:
    return SearchEvent(
        num_steps=number,
        num_candidates=number,
        makespan_us=2500.0,
        improved=improved,
        elapsed_s=1.0,
        num_queued=3,
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_steps": 1000}, r"search:  50%.*500/1000 .*<.*best 2.50 ms"),
        ({"time_limit_s": 9.0}, "search: 500 candidates .*best 2.50 ms, at most 8 s left"),
        ({}, "search: 500 candidates .*best 2.50 ms, 300 since, of 1000 at most"),
    ],
)
def test_the_bar_says_what_is_done_and_until_when(
    limits: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Lines()
    monkeypatch.setattr(sys, "stderr", terminal)
    with SearchBar(SearchConfig(**limits)) as bar:
        assert terminal.drawn[-1] == "import ..."
        bar.search()
        bar(event(200, improved=True))
        before = len(terminal.drawn)
        for number in range(201, 500):
            bar(event(number))
        assert len(terminal.drawn) - before < 50  # not at every event
        bar._bar.mininterval = 0
        bar(event(500))
        assert re.search(expected, terminal.drawn[-1])
        bar.stage("compile 12 units")
        assert terminal.drawn[-1].startswith("compile 12 units ...")


def test_a_build_whose_search_was_interrupted_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = SimpleNamespace(
        strategy=SimpleNamespace(order=[1]), cluster=ClusterSpec.preset("cluster-a")
    )
    plan = SimpleNamespace(
        model="m",
        target="llvm",
        world_size=2,
        num_kernels=1,
        num_allreduces=1,
        predicted={"makespan_us": 1.0},
        digest="",
    )
    for reason, said in (
        ("interrupted", "interrupted: the plan is of the best so far\n"),
        ("q", ""),
    ):
        found = (None, choice, reason)
        monkeypatch.setattr("disco_fuse.cli.build.search_choice", lambda *_, found=found: found)
        monkeypatch.setattr("disco_fuse.cli.build.write_choice", lambda *_: plan)
        done = run("build", "bert_small", "-O", str(tmp_path / "p"))
        assert (done.exit_code, done.stderr) == (0, said)


def test_a_page_waits_for_folders(tmp_path: Path) -> None:
    folder, file = tmp_path / "logs", tmp_path / "events.jsonl"
    watch = Watch([folder, file])
    watch.scan()
    assert watch.runs == {}
    folder.mkdir()
    for path in (folder / "events-rank-0.jsonl", file):
        path.write_text('{"event": "start", "step": 0}\n')
    watch.scan()
    assert sorted(run.name for run in watch.runs.values()) == [str(file), "logs"]


def test_help_of_the_pass_shows_its_options() -> None:
    code = (
        "import sys, tvm, pydoc\n"
        "assert 'disco_fuse' not in sys.modules\n"
        "assert 'DisCoFuse' in dir(tvm.relax.transform)\n"
        "print(pydoc.render_doc(tvm.relax.transform.DisCoFuse))\n"
        "assert not hasattr(tvm.relax.transform, 'NoSuchPass')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "search_config" in done.stdout
    assert "library: 'bool' = False" in done.stdout
    assert "Prices fused kernels." in done.stdout
