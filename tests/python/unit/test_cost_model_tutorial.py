"""The tutorial on cost models, run unmodified."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TUTORIAL = Path(__file__).parents[3] / "tutorials" / "write_a_cost_model.py"


def test_the_search_uses_what_a_model_in_python_says() -> None:
    command = [sys.executable, str(TUTORIAL)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"groups asked for in Python: (\d+)", done.stdout)[0]) > 100
    rows = re.findall(r"^found by .* ([\d.]+) +([\d.]+)$", done.stdout, re.MULTILINE)
    (roofline, blind), (_, spilling) = [tuple(map(float, row)) for row in rows]
    assert roofline < blind  # the model adds something
    assert spilling < blind  # and the search avoids it
