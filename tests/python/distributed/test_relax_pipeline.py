"""The tutorial on TVM's own training passes, run unmodified."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import require_mpirun

TUTORIAL = Path(__file__).parents[3] / "tutorials" / "relax_pipeline.py"


def test_ranks_train_a_relax_model_and_stay_equal(tmp_path: Path) -> None:
    require_mpirun()
    command = [sys.executable, str(TUTORIAL), "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gradient buckets for 6 gradients" in done.stdout
    assert "0 gradient buckets" not in done.stdout
    assert "2 ranks hold equal parameters" in done.stdout
