"""Guards against ranks that disagree or die alone."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from disco_fuse.errors import WorkloadError
from disco_fuse.runtime.communicator import Communicator

T = TypeVar("T")


def on_all_ranks(communicator: Communicator, action: Callable[[], T], what: str) -> T:
    """Do something on every rank; what is refused on one is refused on all.

    Parameters
    ----------
    communicator
        All its ranks call this.
    action
        What may fail on some ranks only, without communication.
    what
        What it belongs to, for the message.

    Raises
    ------
    ValueError
        If the action raised ValueError, OSError or ImportError anywhere: on every rank, with every
        such rank and its reason. The only rank of a job sees the error itself.
    """
    if communicator.world_size == 1:
        return action()
    result, failure = None, None
    try:
        result = action()
    except (ValueError, OSError, ImportError) as error:
        failure = error
    reasons = communicator.allgather(None if failure is None else str(failure), what)
    refusals = [f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]
    if refusals:
        raise ValueError(f"{what} is refused on {'; '.join(refusals)}") from failure
    assert result is not None
    return result


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

    An exception inside is printed with its rank and traceback to stderr, then MPI aborts the job;
    of a ``WorkloadError``, which says where it comes from, only its line. A job of one rank just
    sees the exception. ``SystemExit`` with code 0 or None is no failure.
    """
    try:
        yield
    except BaseException as error:
        if communicator.world_size == 1 or (
            isinstance(error, SystemExit) and error.code in (0, None)
        ):
            raise
        sys.stdout.flush()
        told = isinstance(error, WorkloadError)
        sys.stderr.write(f"rank {communicator.rank} of {communicator.world_size} failed:\n")
        sys.stderr.write(f"{error}\n" if told else traceback.format_exc())
        sys.stderr.flush()
        communicator.abort(1)
        raise
