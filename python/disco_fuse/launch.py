"""Starts the ranks of a job with Open MPI's ``mpirun``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# One thread per rank: the ranks share the cores, and kernels are compiled for one.
# Running as root is refused by Open MPI unless both variables say otherwise (containers).
_RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TVM_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
_GRACE_S = 5.0  # mpirun itself gives its ranks one second


def find_mpirun() -> Path:
    """The ``mpirun`` beside this interpreter (the wheel's), else the first one on the path.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    if beside.exists():
        return beside
    found = shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError(
            f"no mpirun in {beside.parent} nor on the path: install the extra disco-fuse[mpi]"
        )
    return Path(found)


def mpirun_command(
    program_args: Sequence[str],
    num_ranks: int,
    *,
    hosts: Mapping[str, int] | None = None,
    oversubscribe: bool = False,
    mpirun_args: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """The command that runs a Python program on `num_ranks` ranks.

    Parameters
    ----------
    program_args
        Arguments of the Python interpreter: a script and its own arguments, or ``-m module ...``.
    num_ranks
        Number of ranks. One runs without ``mpirun``: use :func:`disco_fuse.runtime.loopback`.
    hosts
        Host names and how many ranks each takes; this host alone if None. The interpreter must
        have the same path on all of them.
    oversubscribe
        Allow more ranks than cores on this host (tests; timings mean nothing then).
    mpirun_args
        More options for ``mpirun``, e.g. the network interface.

    Returns
    -------
    argv, env
        The command and the variables to add to the environment.

    Raises
    ------
    ValueError
        If `num_ranks` is outside the allowed range.
    FileNotFoundError
        If more than one rank is asked for and there is no ``mpirun``.
    """
    slots = sum(hosts.values()) if hosts else (os.cpu_count() or 1)
    if num_ranks < 1 or (num_ranks > slots and not oversubscribe):
        limit = "" if oversubscribe else f" to {slots}"
        hint = "" if num_ranks < 1 else "; oversubscribe=True allows more ranks than cores"
        raise ValueError(f"num_ranks is {num_ranks}; allowed: 1{limit}{hint}")
    program = [sys.executable, *program_args]
    env = dict(_RANK_ENVIRONMENT)
    if num_ranks == 1:
        return program, env
    argv = [str(find_mpirun()), "-n", str(num_ranks)]
    # Binding would put all ranks of a container with shared cores on the first one.
    argv += ["--bind-to", "none"]
    if hosts:
        argv += ["--host", ",".join(f"{host}:{count}" for host, count in hosts.items())]
    if oversubscribe or not hosts:
        # mpirun counts cores its own way (not hardware threads); we have counted already.
        argv += ["--map-by", ":OVERSUBSCRIBE"]
    for name in _RANK_ENVIRONMENT:
        argv += ["-x", name]
    return [*argv, *mpirun_args, *program], env


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
) -> subprocess.CompletedProcess[str]:
    """Run a Python program on `num_ranks` ranks and wait for it.

    Parameters
    ----------
    program_args, num_ranks, hosts, oversubscribe, mpirun_args
        As for :func:`mpirun_command`.
    timeout_s
        Seconds after which all ranks are ended.
    capture
        Whether to return the output instead of passing it through.
    prefix
        A command that runs the one behind it, e.g. in another network namespace.
    pass_on_sigterm
        Whether the ranks get a SIGTERM to this process, as SIGUSR1, and may take their time to
        end; a second one ends them by force. Otherwise it ends this process and the ranks.

    Raises
    ------
    subprocess.TimeoutExpired
        After `timeout_s`, with the output so far. No process of the job is left, neither then nor
        after Ctrl-C.
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
                stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            _end_session(process)
            stdout, stderr = process.communicate()
            raise subprocess.TimeoutExpired(argv, expired.timeout, stdout, stderr) from None
        except BaseException:
            _end_session(process)
            raise
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


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
