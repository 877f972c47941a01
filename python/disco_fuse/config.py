"""Descriptions of devices and clusters, and the knobs of the search: frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.checks import is_number as _is_number
from disco_fuse.checks import require as _require
from disco_fuse.cluster import ClusterSpec
from disco_fuse.device import DeviceSpec

__all__ = ["AllReduceModel", "ClusterSpec", "DeviceSpec", "FusionLimits", "SearchConfig"]

EDIT_KINDS = ("fuse", "fuse-duplicate", "merge-buckets")
BUCKET_NEIGHBOURS = ("producer-consumer", "production-order")


@dataclass(frozen=True, kw_only=True)
class FusionLimits:
    """Bounds of the search space.

    Attributes
    ----------
    max_group_ops : int
        Members of one kernel, copies included.
    max_group_args : int
        External inputs plus outputs of one kernel.
    bucket_neighbours : str
        ``"producer-consumer"``: buckets may be merged by an edit if their gradients come from one
        unit or from two units joined by an edge (the paper's words). ``"production-order"``: also
        if their gradients follow each other in production order; weight gradients that are library
        calls never read each other, so that the paper's rule alone would merge nothing.
    """

    max_group_ops: int = 64
    max_group_args: int = 64
    bucket_neighbours: str = "production-order"

    def __post_init__(self) -> None:
        for name in ("max_group_ops", "max_group_args"):
            value = getattr(self, name)
            _require(isinstance(value, int) and value >= 1, f"FusionLimits.{name}", ">= 1", value)
        _require(
            self.bucket_neighbours in BUCKET_NEIGHBOURS,
            "FusionLimits.bucket_neighbours",
            f"one of {BUCKET_NEIGHBOURS}",
            self.bucket_neighbours,
        )


# For what is not ours to limit: other tools' choices, and plans that were built once.
UNCAPPED = FusionLimits(max_group_ops=2**20, max_group_args=2**20)

# Beyond these a single step of the search would take longer than anybody waits for Ctrl-C.
_MOST = {
    "beta": 10_000,
    "patience": 2**31 - 1,
    "children_per_pop": 10_000,
    "num_tries": 10_000,
    "report_every": 1_000_000,
}


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Knobs of the backtracking search; defaults from Yi et al., TPDS 2022, Section 5.

    Attributes
    ----------
    alpha : float
        Candidates of up to alpha times the best makespan are followed up.
    beta : int
        A candidate is made by 0 to beta random edits of one kind.
    patience : int
        Candidates without improvement after which the search ends.
    seed : int
        Same seed, same result, on every machine.
    max_steps : int, optional
        Candidates at most.
    time_limit_s : float, optional
        Seconds at most; a result found under a time limit is not reproducible.
    methods : tuple of str
        Kinds of edits, out of "fuse", "fuse-duplicate", "merge-buckets".
    children_per_pop : int
        Rounds of all methods per popped strategy (authors' code: 10).
    queue_cap : int, optional
        Queued strategies at most, the cheapest ones (authors' code: 50).
    refill : bool
        Whether a queue that runs empty before patience ends gets back everything within alpha of
        the best. The paper's algorithm stops there, on small graphs after a handful of candidates.
    num_tries : int
        Random places tried per edit before it is given up.
    report_every : int
        Candidates between two progress reports; also how often limits of time are looked at.
    limits : FusionLimits
    """

    alpha: float = 1.05
    beta: int = 10
    patience: int = 1000
    seed: int = 0
    max_steps: int | None = None
    time_limit_s: float | None = None
    methods: tuple[str, ...] = EDIT_KINDS
    children_per_pop: int = 1
    queue_cap: int | None = None
    refill: bool = True
    num_tries: int = 8
    report_every: int = 256
    limits: FusionLimits = field(default_factory=FusionLimits)

    def __post_init__(self) -> None:
        ok = _is_number(self.alpha) and self.alpha >= 1
        _require(ok, "SearchConfig.alpha", "finite, >= 1", self.alpha)
        for name in ("beta", "patience", "children_per_pop", "num_tries", "report_every"):
            value = getattr(self, name)
            ok = isinstance(value, int) and 1 <= value <= _MOST[name]
            _require(ok, f"SearchConfig.{name}", f"an integer from 1 to {_MOST[name]}", value)
        ok = isinstance(self.seed, int) and 0 <= self.seed < 2**63
        _require(ok, "SearchConfig.seed", "an integer in [0, 2**63)", self.seed)
        for name, least in (("max_steps", 0), ("queue_cap", 1), ("time_limit_s", 0)):
            value = getattr(self, name)
            ok = value is None or (_is_number(value) and value >= least)
            if name != "time_limit_s":
                ok = value is None or (isinstance(value, int) and least <= value < 2**31)
            _require(ok, f"SearchConfig.{name}", f"None or >= {least}", value)
        ok = bool(self.methods) and all(method in EDIT_KINDS for method in self.methods)
        _require(ok, "SearchConfig.methods", f"a non-empty tuple out of {EDIT_KINDS}", self.methods)
