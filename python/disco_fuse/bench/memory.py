"""What a process has needed."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far.

    On Linux from ``/proc``: what ``getrusage`` says there includes the parent's size at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes() -> int:
    """Resident set of this process now; Linux only.

    Raises
    ------
    OSError
        There is no ``/proc``.
    """
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def reset_peak_rss() -> None:
    """Let :func:`peak_rss_bytes` begin anew at the present resident set; Linux only.

    Raises
    ------
    OSError
        There is no ``/proc``, or the kernel refuses it.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
