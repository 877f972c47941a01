"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to; what is there in the end takes its place.

    It has the same suffix, by which some writers choose a format. After an error nothing is left
    of it, and what was at ``path`` before is as it was. A device, such as /dev/null, is written to
    itself.

    Raises
    ------
    OSError
        With the name of ``path``, whatever name the failing call knew.
    """
    device = path.exists() and not path.is_file()
    target = Path(os.path.realpath(path))  # a link stays one
    temporary = (
        path if device else target.with_name(f".{os.getpid()}-{threading.get_ident()}{path.suffix}")
    )
    try:
        yield temporary
        if not device:
            temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        if not device:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all; see :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
