"""Starts the ranks of a job with ``mpirun`` and sees to it that all of it ends.

A host that no longer answers keeps mpirun from ending: it waits for that host's daemon, though
all ranks that it can reach have ended. So once the ranks of this host are gone, mpirun is given
some time and is then ended too. The ranks elsewhere end themselves (``runtime/guards.py``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from disco_fuse.mpirun import mpirun_command

_GRACE_S = 5.0  # mpirun itself gives its ranks one second
_LOOK_S = 1.0
# In the environment of every rank, and of nothing else: Open MPI's name and that of MPICH.
_RANK_MARKS = (b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")


class HostLostError(RuntimeError):
    """All ranks of this host have ended, and mpirun waits for a host that does not answer.

    Attributes
    ----------
    stdout, stderr : str or None
        What the job printed, if it was captured.
    """

    def __init__(self, straggler_s: float, stdout: str | None, stderr: str | None) -> None:
        super().__init__(
            f"all ranks of this host had ended, and mpirun waited {straggler_s:g} s more for a "
            "host that does not answer: the job was ended"
        )
        self.stdout, self.stderr = stdout, stderr


def _end_with_parent() -> None:
    """In the child: be told to end when this process dies, however it dies (Linux)."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def run(
    program_args: Sequence[str],
    num_ranks: int,
    *,
    timeout_s: float | None = None,
    capture: bool = False,
    hosts: Mapping[str, int] | None = None,
    oversubscribe: bool = False,
    mpirun_args: Sequence[str] = (),
    prefix: Sequence[str] = (),
    pass_on_sigterm: bool = False,
    straggler_s: float = 30.0,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program on `num_ranks` ranks and wait for it.

    Parameters
    ----------
    program_args, num_ranks, hosts, oversubscribe, mpirun_args
        As for :func:`disco_fuse.mpirun.mpirun_command`.
    timeout_s
        Seconds after which all ranks are ended.
    capture
        Whether to return the output instead of passing it through.
    prefix
        A command that runs the one behind it, e.g. in another network namespace.
    pass_on_sigterm
        Whether the ranks get a SIGTERM to this process, as SIGUSR1, and may take their time to
        end; a second one ends them by force. Otherwise it ends this process and the ranks.
    straggler_s
        With several hosts: seconds that mpirun may go on when all ranks of this host have ended.
        Then another host does not answer.

    Raises
    ------
    subprocess.TimeoutExpired
        After `timeout_s`, with the output so far. No process of the job is left, neither then nor
        after Ctrl-C.
    HostLostError
        After `straggler_s`, likewise. Ranks that were started on other hosts end by themselves.
    """
    argv, added = mpirun_command(
        program_args,
        num_ranks,
        hosts=hosts,
        oversubscribe=oversubscribe,
        mpirun_args=mpirun_args,
    )
    argv = [*prefix, *argv]
    pipe = subprocess.PIPE if capture else None
    # The ranks inherit the caller's environment, as children do; nothing is read from it here.
    # A session of its own: all processes of the job can be signalled, and only they.
    with subprocess.Popen(
        argv,
        env={**os.environ, **added},
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    ) as process:
        try:
            with _sigterm_goes_to(process) if pass_on_sigterm else contextlib.nullcontext():
                if hosts is None or len(hosts) < 2:
                    stdout, stderr = process.communicate(timeout=timeout_s)
                else:
                    stdout, stderr = _until_no_ranks(process, timeout_s, straggler_s)
        except subprocess.TimeoutExpired as expired:
            _end_session(process)
            stdout, stderr = process.communicate()
            raise subprocess.TimeoutExpired(argv, expired.timeout, stdout, stderr) from None
        except BaseException:
            _end_session(process)
            raise
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


def _until_no_ranks(
    process: subprocess.Popen[str], timeout_s: float | None, straggler_s: float
) -> tuple[str, str]:
    """The output of mpirun, which is ended `straggler_s` after the last rank of this host."""
    begin = time.monotonic()
    seen: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_LOOK_S)  # may be called again: keeps its output
        now = time.monotonic()
        if timeout_s is not None and now - begin > timeout_s:
            raise subprocess.TimeoutExpired(process.args, timeout_s)
        if any(map(_is_rank, _session_members(process.pid))):
            seen = now
        elif seen is not None and now - seen > straggler_s:
            _end_session(process)
            raise HostLostError(straggler_s, *process.communicate())


@contextlib.contextmanager
def _sigterm_goes_to(process: subprocess.Popen[str]) -> Iterator[None]:
    """Hand SIGTERM to the ranks in a form that mpirun passes on.

    On SIGTERM mpirun kills its ranks a second later; SIGUSR1 it sends to all of them, on every
    host.
    """
    asked: list[int] = []

    def on_sigterm(number: int, frame: object) -> None:
        del frame
        asked.append(number)
        if len(asked) == 1:
            process.send_signal(signal.SIGUSR1)
        else:
            _end_session(process)

    previous = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end_session(process: subprocess.Popen[str]) -> None:
    """End a session leader and all it started: politely, so that mpirun cleans up, then by force.

    The ranks are in process groups of their own, but in mpirun's session.
    """
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    process.kill()
    for pid in _session_members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_rank(pid: int) -> bool:
    """Whether a process is a rank, by the environment that its launcher gave it (Linux)."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended
        return False
    return any(entry.startswith(_RANK_MARKS) for entry in environment.split(b"\0"))


def _session_members(session: int) -> list[int]:
    """Processes of a POSIX session on this host, from /proc (Linux)."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process may end meanwhile
            # "pid (name) state parent group session ...", where the name may hold anything.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                members.append(int(stat.parent.name))
    return members
