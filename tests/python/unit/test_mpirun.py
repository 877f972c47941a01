"""Which MPI an mpirun is of, and the options that it gets."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from disco_fuse import mpirun
from disco_fuse.mpirun import MpiFamily, family_in, family_of, mpirun_command

VERSIONS = {
    "mpirun (Open MPI) 5.0.11": MpiFamily.OPEN_MPI,
    "Open MPI v4.1.4, package: Debian OpenMPI": MpiFamily.OPEN_MPI,
    "HYDRA build details: Version: 5.0.2": MpiFamily.MPICH,
    "MPICH Version: 4.0.2": MpiFamily.MPICH,
    "Intel(R) MPI Library for Linux* OS, Version 2021.11": MpiFamily.MPICH,
    "srun 23.02": None,
}
needs_mpi4py = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed (extra: mpi)"
)


@pytest.mark.parametrize("text", VERSIONS)
def test_families(text: str) -> None:
    assert family_in(text) == VERSIONS[text]


def launcher(folder: Path, says: str) -> Path:
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o700)
    return path


def test_unknown_launcher(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"says 'srun 23' of itself; allowed: Open MPI, MPICH"):
        family_of(launcher(tmp_path, "srun 23"))


@needs_mpi4py
def test_launcher_of_another_mpi_than_mpi4py_uses(tmp_path: Path) -> None:
    ours, theirs = "Open MPI", "HYDRA"
    if family_in(mpirun._output([sys.executable, "-c", mpirun._ASK_MPI4PY])) == MpiFamily.MPICH:
        ours, theirs = theirs, ours
    (tmp_path / "a").mkdir()
    assert family_of(launcher(tmp_path / "a", ours)) == family_in(ours)
    with pytest.raises(RuntimeError, match=r"but mpi4py uses .*: every rank would be alone"):
        family_of(launcher(tmp_path, theirs))


@pytest.mark.parametrize(
    ("family", "options"),
    [
        (MpiFamily.OPEN_MPI, "--bind-to none --host a:2,b:2 -x OMP_NUM_THREADS"),
        (MpiFamily.MPICH, "-bind-to none -hosts a:2,b:2 --quiet"),
    ],
)
def test_command_with_hosts(
    family: MpiFamily, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpirun, "find_mpirun", lambda: Path("/opt/mpirun"))
    monkeypatch.setattr(mpirun, "family_of", lambda _: family)
    argv, env = mpirun_command(
        ["x.py", "--flag"], 3, hosts={"a": 2, "b": 2}, mpirun_args=["--quiet"]
    )
    text = " ".join(argv)
    assert text.startswith(f"/opt/mpirun -n 3 {options}")
    assert "OVERSUBSCRIBE" not in text
    assert text.endswith(f" --quiet {sys.executable} x.py --flag")
    if family == MpiFamily.OPEN_MPI:
        assert all(f"-x {name}" in text for name in env)
        argv, _ = mpirun_command(["x.py"], 99, oversubscribe=True)
        assert "--map-by :OVERSUBSCRIBE" in " ".join(argv)
