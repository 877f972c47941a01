"""Where a step runs: a device, and the links over which equal devices average gradients.

    host 0                          host 1
    +-------------------------+     +-------------------------+
    | device - inside - device|--+--|device - inside - device |     one ring over all devices
    +-------------------------+  |  +-------------------------+
                              network

A ring AllReduce of b bytes over N devices takes 2 (N - 1) steps of b / N bytes (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009). Steps run
at the rate of the slowest link of the ring; NCCL counts their latencies the same way
(NVIDIA/nccl, src/graph/tuning.cc, ring)::

    time = base + 2 (H - 1) network latency + 2 (N - H) inside latency
         + 2 (N - 1) / N * b / min(inside bandwidth, network bandwidth)         H = number of hosts
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.checks import (
    MAX_COUNT,
    MAX_US,
    from_table,
    is_count,
    is_number,
    require,
    require_text,
)
from disco_fuse.device import DeviceSpec

_LEAST_GBPS = 1e-6
_COUNT = f"an integer from 1 to {MAX_COUNT}"
_PRESETS = "clusters"  # folder of this package with a TOML file for each


@dataclass(frozen=True, kw_only=True)
class Link:
    """One hop of the ring.

    Attributes
    ----------
    bandwidth_gbps : float
        1e9 bytes a second in one direction: of a device inside a host, of a whole host outside.
    latency_us : float
        Of one step of the ring, microseconds.
    """

    bandwidth_gbps: float
    latency_us: float

    def __post_init__(self) -> None:
        value = self.bandwidth_gbps
        ok = is_number(value) and value >= _LEAST_GBPS
        require(ok, "Link.bandwidth_gbps", f"finite, >= {_LEAST_GBPS:g}", value)
        value = self.latency_us
        ok = is_number(value) and 0 <= value <= MAX_US
        require(ok, "Link.latency_us", f"from 0 to {MAX_US:g}", value)

    def scaled(self, factor: float) -> Link:
        """The link on which everything takes ``factor`` times as long."""
        return Link(
            bandwidth_gbps=self.bandwidth_gbps / factor, latency_us=self.latency_us * factor
        )


@dataclass(frozen=True, kw_only=True)
class Links:
    """What joins the devices of a cluster; hosts are filled one after the other.

    Attributes
    ----------
    devices_per_host : int
    network : Link
        Between hosts.
    inside : Link, optional
        Between devices of one host; needed where a host has several.
    base_us : float
        Fixed time of every AllReduce, microseconds.
    """

    devices_per_host: int
    network: Link
    inside: Link | None = None
    base_us: float = 0.0

    def __post_init__(self) -> None:
        value = self.devices_per_host
        require(is_count(value), "Links.devices_per_host", _COUNT, value)
        ok = is_number(self.base_us) and 0 <= self.base_us <= MAX_US
        require(ok, "Links.base_us", f"from 0 to {MAX_US:g}", self.base_us)
        ok = self.inside is not None or self.devices_per_host == 1
        require(ok, "Links.inside", "given where a host has several devices", self.inside)

    def allreduce(self, world_size: int) -> AllReduceModel:
        """The line of a ring over ``world_size`` devices (formula at the top of this file)."""
        if world_size == 1:
            return AllReduceModel.linear(latency_us=0.0, us_per_byte=0.0)
        hosts = math.ceil(world_size / self.devices_per_host)
        hops = [(self.network, 2 * (hosts - 1))] if hosts > 1 else []
        if self.inside is not None and world_size > hosts:
            hops.append((self.inside, 2 * (world_size - hosts)))
        slowest = min(link.bandwidth_gbps for link, _ in hops)
        return AllReduceModel.linear(
            latency_us=self.base_us + sum(link.latency_us * steps for link, steps in hops),
            us_per_byte=2 * (world_size - 1) / world_size / (slowest * 1e3),
        )

    def scaled(self, factor: float) -> Links:
        """The links on which everything takes ``factor`` times as long."""
        return replace(
            self,
            network=self.network.scaled(factor),
            inside=self.inside and self.inside.scaled(factor),
            base_us=self.base_us * factor,
        )


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Where the step runs: equal devices, one AllReduce curve.

    Attributes
    ----------
    name : str
    world_size : int
        Number of ranks.
    device : DeviceSpec
    allreduce : AllReduceModel
    contention : float
        Factor >= 1 by which compute slows down while communication is in flight; kept to 1/1000.
    links : Links, optional
        What ``allreduce`` was derived from; none where it was measured or fitted.
    """

    name: str
    world_size: int
    device: DeviceSpec
    allreduce: AllReduceModel
    contention: float = 1.0
    links: Links | None = None

    def __post_init__(self) -> None:
        require_text("ClusterSpec.name", self.name)
        value = self.world_size
        require(is_count(value), "ClusterSpec.world_size", _COUNT, value)
        ok = is_number(self.contention) and 1 <= self.contention <= 1000
        require(ok, "ClusterSpec.contention", "from 1 to 1000", self.contention)

    @classmethod
    def load(cls, name_or_path: str | Path) -> ClusterSpec:
        """The preset of that name, or else the cluster in that TOML file.

        Raises
        ------
        ValueError
            If there is neither, naming the presets; or if the file is wrong.
        """
        if str(name_or_path) in preset_names():
            return cls.preset(str(name_or_path))
        if not Path(name_or_path).is_file():
            names = ", ".join(preset_names())
            raise ValueError(f"no cluster {str(name_or_path)!r}: presets are {names}; no such file")
        return cls.from_toml(name_or_path)

    @classmethod
    def preset(cls, name: str) -> ClusterSpec:
        """A cluster that comes with the package.

        Raises
        ------
        ValueError
            If there is none of that name.
        """
        if name not in preset_names():
            raise ValueError(f"no cluster preset {name!r}; there are {', '.join(preset_names())}")
        file = resources.files("disco_fuse") / _PRESETS / f"{name}.toml"
        return _parse(file.read_text(encoding="utf-8"), f"preset {name}")

    @classmethod
    def from_toml(cls, path: str | Path) -> ClusterSpec:
        """Read a cluster from a TOML file.

        The file holds ``name``, ``world_size``, optionally ``contention``, the table ``[device]``
        with the fields of :class:`DeviceSpec` (efficiencies as
        ``efficiency.matmul = { flops = 0.6, bandwidth = 0.8 }``), and either the measured curve,
        ``[allreduce]`` with the fields of :class:`AllReduceModel`, or ``[links]`` with those of
        :class:`Links`, from which the curve follows.

        Raises
        ------
        ValueError
            Naming the file and the field that is missing, unknown or wrong.
        """
        return _parse(Path(path).read_text(encoding="utf-8"), str(path))

    def with_world_size(self, world_size: int) -> ClusterSpec:
        """The same cluster with more or fewer devices; hosts stay as big as they are.

        Raises
        ------
        ValueError
            If the AllReduce curve was measured, so that nothing tells it for another size.
        """
        require(is_count(world_size), "world_size", _COUNT, world_size)
        if world_size == self.world_size:
            return self
        if self.links is None:
            raise ValueError(
                f"cluster {self.name!r} has an AllReduce curve for {self.world_size} ranks and no "
                f"links to derive one for {world_size} from"
            )
        allreduce = self.links.allreduce(world_size)
        return replace(self, world_size=world_size, allreduce=allreduce)

    def scaled(self, *, compute: float = 1.0, allreduce: float = 1.0) -> ClusterSpec:
        """The cluster whose kernels and AllReduces take so many times as long.

        Times of ops that were measured are not part of a cluster; whoever has some scales them too.
        """
        for what, factor in (("compute", compute), ("allreduce", allreduce)):
            require(is_number(factor) and factor > 0, what, "finite, > 0", factor)
        curve = self.allreduce
        return replace(
            self,
            name=f"{self.name}, compute x{compute:g}, AllReduce x{allreduce:g}",
            device=self.device.scaled(compute),
            allreduce=replace(
                curve,
                small_latency_us=curve.small_latency_us * allreduce,
                small_us_per_byte=curve.small_us_per_byte * allreduce,
                large_latency_us=curve.large_latency_us * allreduce,
                large_us_per_byte=curve.large_us_per_byte * allreduce,
            ),
            links=self.links and self.links.scaled(allreduce),
        )


def preset_names() -> tuple[str, ...]:
    """Names of the clusters that come with the package, sorted."""
    files = (resources.files("disco_fuse") / _PRESETS).iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def _parse(text: str, where: str) -> ClusterSpec:
    try:
        return _from_tables(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where}: not TOML: {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _from_tables(data: dict[str, Any]) -> ClusterSpec:
    device = DeviceSpec.from_table(data.pop("device", None))
    curve, table = data.pop("allreduce", None), data.pop("links", None)
    if (curve is None) == (table is None):
        raise ValueError("exactly one of [allreduce] and [links] is needed")
    rest: dict[str, Any] = {**data, "device": device}
    if table is None:
        rest["allreduce"] = from_table(AllReduceModel, curve, "[allreduce]")
    else:
        world_size: Any = data.get("world_size")
        require(is_count(world_size), "ClusterSpec.world_size", _COUNT, world_size)
        links = _links(table)
        rest |= {"links": links, "allreduce": links.allreduce(world_size)}
    return from_table(ClusterSpec, rest, "top level")


def _links(table: Any) -> Links:
    if not isinstance(table, Mapping):
        return from_table(Links, table, "[links]")
    parts = {
        name: from_table(Link, table[name], f"[links.{name}]")
        for name in ("inside", "network")
        if name in table
    }
    return from_table(Links, {**table, **parts}, "[links]")
