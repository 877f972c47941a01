"""Work in a process of its own: its memory is given back, and its end is not ours."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


def apart(function: Callable[..., _T], *arguments: object) -> _T:
    """What a function returns, called in a process of its own.

    Raises
    ------
    BrokenProcessPool
        The process died. Ctrl-C ends it without a traceback of its own.
    """
    context = multiprocessing.get_context("spawn")
    quiet = (signal.SIGINT, signal.SIG_DFL)
    with ProcessPoolExecutor(
        1, mp_context=context, initializer=signal.signal, initargs=quiet
    ) as pool:
        return pool.submit(function, *arguments).result()
