"""Runs what belongs to a user: a model, its loss, its batches, and the file they are in.

Whatever that raises, also to end the program, becomes one line that says where; what it prints goes
to standard error, since standard output is for results.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from disco_fuse.errors import UnsupportedOperatorError, WorkloadError

_PACKAGE = Path(__file__).parent
_LIBRARIES = (
    str(_PACKAGE),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_LONGEST = 300  # characters of a message; torch's may have hundreds of lines


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Around code of a user, which belongs to ``what``.

    Raises
    ------
    WorkloadError
        In one line: ``what``, the exception, and where in the user's code it was raised. What this
        package says itself of a model (``ValueError``, ``TypeError``) stays as it is.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (UnsupportedOperatorError, WorkloadError):
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        files = [frame for frame in frames if not frame.filename.startswith("<")]
        if isinstance(error, ValueError | TypeError) and _is_ours(files[-1]):
            raise
        raise WorkloadError(f"{what} raised {_in_a_line(error, files)}") from error


def _is_ours(frame: traceback.FrameSummary) -> bool:
    """Whether this package refused something; a wrong call of a user's function is none."""
    inner = Path(frame.filename)
    if not inner.is_relative_to(_PACKAGE):
        return False
    return not inner.is_relative_to(_PACKAGE / "zoo") and inner != _PACKAGE / "workload.py"


def _in_a_line(error: BaseException, files: list[traceback.FrameSummary]) -> str:
    own = [frame for frame in files if not frame.filename.startswith(_LIBRARIES)]
    # A syntax error says itself where it is; its frames are those of the import.
    told = not own or isinstance(error, SyntaxError)
    at = "" if told else f" at {own[-1].filename}, line {own[-1].lineno}"
    try:
        text = str(error).strip()
    except Exception as broken:  # the exception is the user's as well
        text = f"its text cannot be had: {type(broken).__name__}"
    line = " ".join(text.split())
    more = "..." if len(line) > _LONGEST else ""
    return f"{type(error).__name__}{at}: {line[:_LONGEST]}{more}"
