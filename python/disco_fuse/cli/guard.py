"""What every command gets around its work."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from typing import Any

import click

from disco_fuse.cli.output import system_failure
from disco_fuse.cli.places import check_places


def guarded(command: click.Command) -> click.Command:
    """``command``, which first looks at its files, and says in a line what the system refused."""
    work = command.callback
    assert work is not None

    @functools.wraps(work)
    def checked(*arguments: Any, **options: Any) -> Any:
        check_places(click.get_current_context())
        try:
            return work(*arguments, **options)
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends quietly when nobody reads on
                raise
            _drop_output()
            raise system_failure(error) from error

    command.callback = checked
    return command


def _drop_output() -> None:
    """What could not be written to standard output is not tried again at the end."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
