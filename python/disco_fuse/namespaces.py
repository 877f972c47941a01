"""Network namespaces by name: what runs in them, and their end.

Imports nothing of this package, so that it starts at once where it is run as a program:
``namespaces.py NAME`` waits for the end of its standard input and then removes all of that name.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

_LIMIT_S = 5.0


def named(name: str) -> list[str]:
    """Namespaces called ``name`` and a number, or ``name`` and "sw"."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    return [each for each in names if re.fullmatch(rf"{re.escape(name)}(\d+|sw)", each)]


def end_processes(name: str) -> None:
    """Kill what runs in the namespaces of that name, and wait until it is gone.

    Raises
    ------
    RuntimeError
        If something does not end within five seconds.
    """
    for space in named(name):
        deadline = time.monotonic() + _LIMIT_S
        while pids := _processes(space):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {pids} in namespace {space} do not end")
            time.sleep(0.05)


def _processes(space: str) -> list[int]:
    listed = subprocess.run(
        ["ip", "netns", "pids", space], capture_output=True, text=True, check=True
    )
    return [int(pid) for pid in listed.stdout.split()]


def main() -> None:
    """The program."""
    name = sys.argv[1]
    sys.stdin.buffer.read()
    end_processes(name)
    for space in named(name):
        subprocess.run(["ip", "netns", "delete", space], check=True)


if __name__ == "__main__":
    main()
