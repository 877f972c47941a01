"""Starts ``disco-fuse``: Ctrl-C ends it in a line, also while it is still being imported."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """The program."""
    previous = signal.signal(signal.SIGINT, end_at_once)
    from disco_fuse_autoload.commands import main as commands

    signal.signal(signal.SIGINT, previous)
    commands()


def end_at_once(_number: int, _frame: object) -> None:
    """A handler of signals for the time of imports, which may take an exception for their own."""
    os.write(2, b"Aborted!\n")
    os._exit(1)
