"""A device as the roofline sees it: rates, overheads, and what each class of ops reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from disco_fuse.checks import from_table, is_number, require, require_text
from disco_fuse.graph import OpClass


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What ops of one class reach of a device, as shares in (0, 1].

    Attributes
    ----------
    op_class : OpClass
    flops : float
        Share of ``DeviceSpec.peak_gflops``.
    bandwidth : float
        Share of ``DeviceSpec.bandwidth_gbps``.
    """

    op_class: OpClass
    flops: float = 1.0
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        allowed = [str(item) for item in OpClass]
        require(self.op_class in allowed, "Efficiency.op_class", f"one of {allowed}", self.op_class)
        object.__setattr__(self, "op_class", OpClass(self.op_class))
        for name in ("flops", "bandwidth"):
            value = getattr(self, name)
            ok = is_number(value) and 0 < value <= 1
            require(ok, f"Efficiency.{name} of {self.op_class}", "in (0, 1]", value)


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """What the roofline model knows of a device.

    Attributes
    ----------
    name : str
    peak_gflops : float
        1e9 operations a second.
    bandwidth_gbps : float
        1e9 bytes a second, to and from memory.
    launch_us : float
        Fixed time of every kernel or library call, microseconds.
    nest_us : float
        Fixed time of every further loop nest inside one kernel, microseconds. On a GPU each nest is
        a kernel of its own, so that it equals ``launch_us``.
    library_convolutions : bool
        Whether convolutions are library calls there (see :func:`disco_fuse.lower.lower`).
    efficiency : tuple of Efficiency
        Classes that are not listed reach the full rates.
    """

    name: str
    peak_gflops: float
    bandwidth_gbps: float
    launch_us: float
    nest_us: float = 0.0
    library_convolutions: bool = False
    efficiency: tuple[Efficiency, ...] = ()

    def __post_init__(self) -> None:
        require_text("DeviceSpec.name", self.name)
        for name in ("peak_gflops", "bandwidth_gbps"):
            value = getattr(self, name)
            require(is_number(value) and value > 0, f"DeviceSpec.{name}", "finite, > 0", value)
        for name in ("launch_us", "nest_us"):
            value = getattr(self, name)
            require(is_number(value) and value >= 0, f"DeviceSpec.{name}", "finite, >= 0", value)
        value = self.library_convolutions
        require(isinstance(value, bool), "DeviceSpec.library_convolutions", "a bool", value)
        classes = [str(item.op_class) for item in self.efficiency]
        distinct = len(set(classes)) == len(classes)
        require(distinct, "DeviceSpec.efficiency", "one entry per class", classes)

    @classmethod
    def from_table(cls, table: Any) -> DeviceSpec:
        """Of the table ``[device]`` of a TOML file.

        Efficiencies stand there as ``efficiency.matmul = { flops = 0.6, bandwidth = 0.8 }``.

        Raises
        ------
        ValueError
            Naming the field that is missing, unknown or wrong.
        """
        if not isinstance(table, Mapping) or "efficiency" not in table:
            return from_table(cls, table, "[device]")
        rows = table["efficiency"]
        if not isinstance(rows, Mapping) or not all(isinstance(r, Mapping) for r in rows.values()):
            raise ValueError(f"[device.efficiency] must be a table of tables, got {rows!r}")
        efficiency = tuple(
            from_table(Efficiency, {**row, "op_class": name}, f"[device.efficiency.{name}]")
            for name, row in rows.items()
        )
        return from_table(cls, {**table, "efficiency": efficiency}, "[device]")

    def scaled(self, factor: float) -> DeviceSpec:
        """The device on which everything takes ``factor`` times as long."""
        return replace(
            self,
            peak_gflops=self.peak_gflops / factor,
            bandwidth_gbps=self.bandwidth_gbps / factor,
            launch_us=self.launch_us * factor,
            nest_us=self.nest_us * factor,
        )
