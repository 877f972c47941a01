"""Every example of --help that starts ranks; ``help_runs.py`` says with which sizes."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the commands import torch models")

from click.testing import CliRunner
from help_runs import line_of, runs, shortened, written_by

from conftest import LIMIT_S, require_mpirun
from disco_fuse.cli.main import main
from disco_fuse.mpirun import mpirun_command
from disco_fuse.slow_link import why_unavailable

DATA = "from numbers_data import Numbers as batches\n"
SHARED = Path(__file__).parents[1] / "shared"


@pytest.fixture
def here(trained_plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own current folder with what the examples read."""
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "disco_fuse").symlink_to(trained_plan / "plan")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (tmp_path / "train.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SHARED))
    return tmp_path


def _under_mpirun(line: str) -> int:
    """Its exit status; mpirun with what it needs for root and on few cores."""
    words = shlex.split(line)
    start = words.index("disco-fuse")
    assert words[:start] == ["mpirun", "-n", "2"]
    program = ["-m", "disco_fuse.cli", *words[start + 1 :]]
    argv, env = mpirun_command(program, 2, oversubscribe=True)
    done = subprocess.run(argv, env={**os.environ, **env}, check=False, timeout=LIMIT_S)
    return done.returncode


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("example", runs(ranks=True))
def test_example_with_ranks(example: str, capfd: pytest.CaptureFixture[str]) -> None:
    require_mpirun()
    if "--link" in example and why_unavailable() is not None:
        pytest.skip(f"no links of a given rate here: {why_unavailable()}")
    line = line_of(example)
    if line.startswith("mpirun "):
        assert _under_mpirun(line) == 0, capfd.readouterr()
        return
    more = " --oversubscribe" if line.startswith("run ") and "--hostfile" not in line else ""
    with shortened(example):
        result = CliRunner().invoke(main, shlex.split(line + more))
    assert result.exit_code == 0, (result.output, result.exception, capfd.readouterr())
    for path in written_by(line):
        assert path.is_dir() or path.stat().st_size > 100, path
