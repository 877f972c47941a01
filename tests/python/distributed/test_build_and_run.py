"""``disco-fuse build`` makes a folder that ``disco-fuse run`` takes as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the command imports a torch model")

from conftest import LIMIT_S, require_mpirun


def program(*words: str) -> str:
    command = [sys.executable, "-m", "disco_fuse.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_built_runs_on_two_ranks(tmp_path: Path) -> None:
    require_mpirun()
    plan = str(tmp_path / "plan")
    built = json.loads(program("build", "gpt2_small", "-O", plan, "--max-steps", "20", "--json"))
    assert built["world_size"] == 2
    ran = json.loads(program("run", plan, "-n", "2", "--oversubscribe", "--steps", "2", "--json"))
    assert ran["world_size"] == 2
    assert len(ran["losses"]) == 2
