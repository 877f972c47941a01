"""Which MPI starts the ranks, and the command line that it understands."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
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
# Asked without initialising MPI, which outside of mpirun may take seconds.
_ASK_MPI4PY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI;"
    "print(MPI.Get_library_version())"
)
_ASK_TIMEOUT_S = 60.0


class MpiFamily(Enum):
    """Launchers that take the same options, and libraries whose ranks they can connect."""

    OPEN_MPI = "Open MPI"
    MPICH = "MPICH"


# What `mpirun --version` and MPI_Get_library_version say. Hydra is the launcher of MPICH and of
# what descends from it, as Intel MPI and MVAPICH.
_SAYINGS = {
    "Open MPI": MpiFamily.OPEN_MPI,
    "HYDRA": MpiFamily.MPICH,
    "MPICH": MpiFamily.MPICH,
    "MVAPICH": MpiFamily.MPICH,
    "Intel(R) MPI": MpiFamily.MPICH,
}


def find_mpirun() -> Path:
    """The ``mpirun`` beside this interpreter (the wheel's), else the first one on the path.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    beside = _beside()
    if beside.exists():
        return beside
    found = shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError(
            f"no mpirun in {beside.parent} nor on the path: install the extra disco-fuse[mpi] or "
            "disco-fuse[mpich], or an MPI of the system"
        )
    return Path(found)


def _beside() -> Path:
    return Path(sys.executable).parent / "mpirun"


def family_in(text: str) -> MpiFamily | None:
    """The family that a version text belongs to; None for one that is not known."""
    return next((family for saying, family in _SAYINGS.items() if saying in text), None)


@functools.cache
def family_of(mpirun: Path) -> MpiFamily:
    """Whose launcher a program is; it is asked for its version, once.

    Raises
    ------
    RuntimeError
        If it says nothing known, or if ranks that it starts could not find each other, since
        mpi4py uses the library of another family. Each rank would be alone, as rank 0 of 1.
    """
    said = _output([str(mpirun), "--version"])
    family = family_in(said)
    if family is None:
        names = ", ".join(family.value for family in MpiFamily)
        raise RuntimeError(f"{mpirun} says {said[:200]!r} of itself; allowed: {names}")
    if mpirun != _beside():  # a wheel's launcher and library always come together
        library = _output([sys.executable, "-c", _ASK_MPI4PY])
        if family_in(library) != family:
            raise RuntimeError(
                f"{mpirun} is of {family.value}, but mpi4py uses {library[:60]!r}: every rank "
                "would be alone; install an mpi4py built with that MPI, or the MPI of one of the "
                "extras disco-fuse[mpi] and disco-fuse[mpich]"
            )
    return family


def _output(command: Sequence[str]) -> str:
    """What a program prints, on one line."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_ASK_TIMEOUT_S
    )
    return " ".join((done.stdout + done.stderr).split())


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
    RuntimeError
        If the ``mpirun`` that was found cannot be used, see :func:`family_of`.
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
    mpirun = find_mpirun()
    options = _open_mpi_options if family_of(mpirun) == MpiFamily.OPEN_MPI else _mpich_options
    argv = [str(mpirun), "-n", str(num_ranks), *options(hosts or {}, oversubscribe)]
    return [*argv, *mpirun_args, *program], env


def _open_mpi_options(hosts: Mapping[str, int], oversubscribe: bool) -> list[str]:
    # Binding would put all ranks of a container with shared cores on the first one.
    options = ["--bind-to", "none"]
    if hosts:
        options += ["--host", ",".join(f"{host}:{count}" for host, count in hosts.items())]
    if oversubscribe or not hosts:
        # mpirun counts cores its own way (not hardware threads); we have counted already.
        options += ["--map-by", ":OVERSUBSCRIBE"]
    for name in _RANK_ENVIRONMENT:
        options += ["-x", name]
    return options


def _mpich_options(hosts: Mapping[str, int], oversubscribe: bool) -> list[str]:
    """Hydra counts no cores, and passes the whole environment on, to other hosts as well."""
    del oversubscribe
    options = ["-bind-to", "none"]
    if hosts:
        options += ["-hosts", ",".join(f"{host}:{count}" for host, count in hosts.items())]
    return options
