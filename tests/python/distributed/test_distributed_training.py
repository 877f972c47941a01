"""The tutorial on training, run unmodified."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conftest import require_mpirun

TUTORIAL = Path(__file__).parents[3] / "tutorials" / "distributed_training.py"


def test_tutorial_reaches_its_loss_over_a_resume(tmp_path: Path) -> None:
    require_mpirun()
    command = [sys.executable, str(TUTORIAL), "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in PyTorch the trained model's loss is" in done.stdout
    for rank in range(2):
        lines = (tmp_path / f"events-rank-{rank}.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        steps = [event["step"] for event in events if event["event"] == "step"]
        assert steps == list(range(1, 301))
        starts = [event for event in events if event["event"] == "start"]
        assert [start["restored"] and start["restored"]["step"] for start in starts] == [None, 100]
