"""What a result says of the call that made it."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import click


def made_by() -> list[tuple[str, str]]:
    """The command line of this process, and the time, to the second."""
    context = click.get_current_context()
    words = [Path(context.find_root().command_path).name, *sys.argv[1:]]
    return [
        ("command", shlex.join(words)),
        ("made", datetime.now(UTC).isoformat(" ", "seconds")),
    ]
