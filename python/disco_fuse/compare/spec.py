"""What every rank of a comparison is told, in one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DdpOptions:
    """One way to run PyTorch DDP.

    Attributes
    ----------
    bucket_cap_mb : float, optional
        As DDP's argument; None is its default: 1 MiB for the first bucket, then 25.
    compiled : bool
        Whether the model runs through ``torch.compile``.
    """

    bucket_cap_mb: float | None = None
    compiled: bool = False


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """What is compared.

    Attributes
    ----------
    workload : str
        As :func:`disco_fuse.workload.load_workload` takes it.
    plans : mapping of str to str
        Strategy -> plan folder, in the order of the report.
    values, results, rendezvous : str
        Files: initial state (npz), where rank 0 writes, where DDP's ranks meet.
    num_ranks, num_warmup, num_steps : int
    ddp : mapping of str to DdpOptions
        PyTorch DDP under these names as well.
    limits_of : str, optional
        The plan whose limits are measured, see :mod:`disco_fuse.compare.limits`.
    gradient_bytes : int
        Of all its gradients, for the limits.
    """

    workload: str
    plans: Mapping[str, str]
    values: str
    results: str
    rendezvous: str
    num_ranks: int
    num_warmup: int
    num_steps: int
    ddp: Mapping[str, DdpOptions]
    limits_of: str | None = None
    gradient_bytes: int = 0

    @staticmethod
    def read(path: Path) -> ComparisonSpec:
        """The spec in file ``path``."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        ddp = {name: DdpOptions(**options) for name, options in fields.pop("ddp").items()}
        return ComparisonSpec(ddp=ddp, **fields)

    def write(self, path: Path) -> None:
        """Write it to ``path`` for :meth:`read`."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
