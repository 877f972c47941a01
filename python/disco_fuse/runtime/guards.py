"""Guards against ranks that disagree or die alone."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from disco_fuse.runtime.communicator import Communicator


def check_same(communicator: Communicator, digest: str, what: str) -> None:
    """Raise on every rank unless all ranks pass the same `digest`.

    Parameters
    ----------
    communicator
        The ranks that must agree; all of them call this.
    digest
        This rank's value, e.g. the hash of its plan.
    what
        What the value belongs to, for the message.

    Raises
    ------
    ValueError
        With every rank's value.
    """
    digests = communicator.allgather(digest)
    if len(set(digests)) > 1:
        values = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(digests))
        raise ValueError(f"the ranks disagree on {what}: {values}")


@contextmanager
def abort_on_error(communicator: Communicator) -> Iterator[None]:
    """End all ranks when this one fails, instead of leaving them to wait for it.

    An exception inside is printed with its rank and traceback to stderr, then MPI aborts the job.
    A job of one rank just sees the exception. ``SystemExit`` with code 0 or None is no failure.
    """
    try:
        yield
    except BaseException as error:
        if communicator.world_size == 1 or (
            isinstance(error, SystemExit) and error.code in (0, None)
        ):
            raise
        sys.stdout.flush()
        sys.stderr.write(f"rank {communicator.rank} of {communicator.world_size} failed:\n")
        sys.stderr.write(traceback.format_exc())
        sys.stderr.flush()
        communicator.abort(1)
        raise
