"""A polite request to end: SIGTERM, or SIGUSR1, which mpirun passes on to its ranks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Open MPI's mpirun answers SIGTERM by killing its ranks a second later, but it and MPICH's
# mpiexec hand SIGUSR1 to them.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def termination_requested() -> Iterator[Callable[[], bool]]:
    """Inside, these signals do nothing but make the yielded function return True.

    Handlers belong to the main thread; on another one the function always returns False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked: list[int] = []
    previous = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in SIGNALS}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
