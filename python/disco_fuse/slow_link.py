"""Ranks on links of a given rate, on one machine: network namespaces with shaped cables.

    namespace P0          namespace P1         P = a name of this process
    +----------+          +----------+
    |  rank 0  |          |  rank 1  |         own network, host name and IPC: no shared memory
    |   eth0   |          |   eth0   |         10.77.0.1, 10.77.0.2, ... shaped by tbf
    +----|-----+          +----|-----+
    +----p0---- bridge -------p1-----+         shaped by tbf as well: both directions have the rate
    |           namespace Psw        |
    +--------------------------------+

Needs root, iproute2 and util-linux. A second process, which outlives this one however it ends,
removes the namespaces and ends what still runs in them (``namespaces.py``).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_fuse import namespaces
from disco_fuse.launch import run
from disco_fuse.mpirun import MpiFamily, family_of, find_mpirun

# Below 64 KiB segments and with a small burst, messages of 256 KiB do not pass unshaped.
_GSO_MAX_BYTES = 16384
_BURST = "32kb"
_QUEUE = "50ms"
_MOST_RANKS = 64
_MTU_PAYLOAD_SHARE = 1448 / 1514  # TCP payload in an Ethernet frame: what is left of the rate

# In place of ssh: AGENT [options] ADDRESS COMMAND runs the command in that address's namespace.
_AGENT = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
name={name}$((${{1##*.}} - 1))
shift
exec ip netns exec "$name" unshare --uts --ipc sh -c "hostname $name; $*"
"""


@dataclass(frozen=True, kw_only=True)
class SlowLink:
    """Links that are up; use :func:`slow_link` to make them.

    Attributes
    ----------
    name : str
        What the namespaces' names begin with.
    num_ranks : int
        Namespaces, hence most ranks.
    rate : str
        As ``tc`` writes it: "1gbit".
    agent : str
        The program that mpirun starts its daemons with.
    """

    name: str
    num_ranks: int
    rate: str
    agent: str

    def run(
        self, program_args: Sequence[str], num_ranks: int, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """:func:`disco_fuse.launch.run` with each rank in a namespace of its own.

        Raises
        ------
        ValueError
            More ranks than namespaces, or fewer than one.
        """
        if not 1 <= num_ranks <= self.num_ranks:
            raise ValueError(
                f"num_ranks is {num_ranks}; allowed on this link: 1 to {self.num_ranks}"
            )
        first = f"{self.name}0"
        enter = ["ip", "netns", "exec", first, "unshare", "--uts", "--ipc"]
        enter += ["sh", "-c", f'hostname {first}; exec "$@"', "sh"]
        transport = ["--prtemca", "plm_ssh_agent", self.agent]
        transport += ["--prtemca", "oob_tcp_if_include", "eth0", "--mca", "pml", "ob1"]
        transport += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0"]
        transport += ["-x", "GLOO_SOCKET_IFNAME=eth0"]
        try:
            return run(
                program_args,
                num_ranks,
                hosts={f"10.77.0.{index + 1}": 1 for index in range(num_ranks)},
                mpirun_args=transport,
                prefix=enter,
                **options,
            )
        finally:
            # mpirun's daemons leave its session, and may outlive a job that was cut short.
            namespaces.end_processes(self.name)


def rate_bytes_per_us(rate: str) -> float:
    """Payload that a link of this rate carries, bytes per microsecond.

    Raises
    ------
    ValueError
        If ``rate`` is not of the form "1gbit" or "100mbit".
    """
    match = re.fullmatch(r"([1-9][0-9]*)(mbit|gbit)", rate)
    if match is None:
        raise ValueError(f"the rate of a link is {rate!r}; allowed: '1gbit', '100mbit', ...")
    megabits = int(match[1]) * (1000 if match[2] == "gbit" else 1)
    return megabits / 8 * _MTU_PAYLOAD_SHARE


def why_unavailable() -> str | None:
    """Why there can be no slow links here, or None."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed (iproute2, util-linux)"
    try:
        if family_of(find_mpirun()) != MpiFamily.OPEN_MPI:
            return "the ranks of a link are started with options of Open MPI only"
        with slow_link(1, "1gbit"):
            return None
    except (RuntimeError, FileNotFoundError) as error:
        return str(error)


@contextlib.contextmanager
def slow_link(num_ranks: int, rate: str) -> Iterator[SlowLink]:
    """Set the links up; they are gone afterwards, also if this process is killed.

    Parameters
    ----------
    num_ranks : int
    rate : str
        Of every link in each direction: "1gbit", "100mbit".

    Raises
    ------
    ValueError
        A wrong rate or number of ranks.
    RuntimeError
        The kernel or the rights do not allow it.
    """
    rate_bytes_per_us(rate)
    if not 1 <= num_ranks <= _MOST_RANKS:
        raise ValueError(f"num_ranks is {num_ranks}; allowed: 1 to {_MOST_RANKS}")
    name = f"df{os.getpid()}n"
    with tempfile.TemporaryDirectory(prefix="df-") as folder, _reaper(name):
        for command in _setup(name, num_ranks, rate):
            _execute(command)
        agent = Path(folder) / "agent.sh"
        agent.write_text(_AGENT.format(name=name), encoding="ascii")
        agent.chmod(0o700)
        yield SlowLink(name=name, num_ranks=num_ranks, rate=rate, agent=str(agent))


def _setup(name: str, num_ranks: int, rate: str) -> Iterator[list[str]]:
    """The commands that build the picture above."""
    switch = f"{name}sw"
    yield f"ip netns add {switch}".split()
    yield f"ip -n {switch} link add bridge0 type bridge".split()
    yield f"ip -n {switch} link set bridge0 up".split()
    for index in range(num_ranks):
        host, port = f"{name}{index}", f"p{index}"
        yield f"ip netns add {host}".split()
        yield f"ip link add eth0 netns {host} type veth peer name {port} netns {switch}".split()
        yield f"ip -n {host} addr add 10.77.0.{index + 1}/24 dev eth0".split()
        yield f"ip -n {host} link set lo up".split()
        yield f"ip -n {switch} link set {port} master bridge0".split()
        for space, device in ((host, "eth0"), (switch, port)):
            yield f"ip -n {space} link set {device} gso_max_size {_GSO_MAX_BYTES}".split()
            yield f"ip -n {space} link set {device} up".split()
            shape = f"root tbf rate {rate} burst {_BURST} latency {_QUEUE}"
            yield f"tc -n {space} qdisc add dev {device} {shape}".split()


def _execute(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")


@contextlib.contextmanager
def _reaper(name: str) -> Iterator[None]:
    """A process that removes the namespaces once this one is done with them, or dead.

    It waits for the end of its standard input, whose other end dies with this process. It is in a
    session of its own, so that no signal for the terminal or the job reaches it.
    """
    with subprocess.Popen(
        [sys.executable, "-I", namespaces.__file__, name],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        try:
            yield
        finally:
            process.stdin.close()
            process.wait()
