"""Descriptions of devices and clusters, and the knobs of the search: frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from disco_fuse.allreduce import AllReduceModel
from disco_fuse.checks import is_number as _is_number
from disco_fuse.checks import require as _require
from disco_fuse.cluster import ClusterSpec
from disco_fuse.device import DeviceSpec

__all__ = [
    "PRESET_NAMES",
    "AllReduceModel",
    "ClusterSpec",
    "DeviceSpec",
    "FusionLimits",
    "SearchConfig",
]

PAPER_EDIT_KINDS = ("fuse", "fuse-duplicate", "merge-buckets")
# In the order of EditKind in src/strategy/edit.h.
EDIT_KINDS = (*PAPER_EDIT_KINDS, "split-bucket", "move-gradient", "take-out", "reorder")
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
        unit or from two units joined by an edge (the paper's words). Where weight gradients are
        library calls, that makes neighbours of one layer's weight, bias and scale, which share a
        kernel, but not of two layers, between which the call for the input gradient stands.
        ``"production-order"``: also if their gradients follow each other in production order.
    """

    max_group_ops: int = 64
    max_group_args: int = 64
    bucket_neighbours: str = "producer-consumer"

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
    "num_starts": 10_000,
    "num_threads": 1024,
    "num_tries": 10_000,
    "report_every": 1_000_000,
}


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Knobs of the backtracking search; defaults from Yi et al., TPDS 2022, Section 5.

    :meth:`preset` has the authors' code and everything beyond the paper by name.

    Attributes
    ----------
    alpha : float
        Candidates of up to alpha times the best makespan are followed up.
    beta : int
        A candidate is made by 0 to beta random edits of one kind.
    patience : int
        Candidates without improvement after which the search ends.
    prefer_few : bool
        Whether the number of edits is uniform up to a bound that is itself uniform from 1 to beta:
        never 0, and mostly few, since late in a search one of many edits nearly always spoils.
    num_chains : int
        If not 0, a candidate is made by that many chains instead; each fuses 1 to beta producers,
        one after the other, into the group of one op (authors' code: 5).
    seed : int
        Same seed, same result, on every machine.
    max_steps : int, optional
        Candidates at most.
    time_limit_s : float, optional
        Seconds at most; a result found under a time limit is not reproducible.
    methods : tuple of str
        Kinds of edits: the paper's "fuse", "fuse-duplicate" and "merge-buckets", and beyond it
        "split-bucket", "move-gradient", "take-out" and "reorder"; see
        :class:`~disco_fuse.strategy.Edit`.
    children_per_pop : int
        Rounds of all methods per popped strategy (authors' code: 10).
    queue_cap : int, optional
        Queued strategies at most, the cheapest ones (authors' code: 50).
    refill : bool
        Whether a queue that runs empty before patience ends gets back everything within alpha of
        the best. The paper's algorithm stops there.
    drop_stale : bool
        Whether a strategy that is its own child, because no edit was drawn or possible, is queued
        again only if it also had a child that was new. In the paper it always is, and the cheapest
        may come back again and again while others wait.
    num_starts : int
        Independent searches, the first with ``seed`` and the others with seeds derived from it;
        the best result counts. ``patience`` and ``max_steps`` are those of each.
    num_threads : int
        Threads for them. The result is the same for any number, unless time is limited.
    num_tries : int
        Random places tried per edit before it is given up.
    report_every : int
        Candidates between two progress reports; also how often limits of time are looked at.
    memory_limit_bytes : int, optional
        What a step may need (``Timeline.memory.peak_bytes``); strategies that need more are
        illegal.
    limits : FusionLimits
    """

    alpha: float = 1.05
    beta: int = 10
    patience: int = 1000
    prefer_few: bool = False
    num_chains: int = 0
    seed: int = 0
    max_steps: int | None = None
    time_limit_s: float | None = None
    methods: tuple[str, ...] = PAPER_EDIT_KINDS
    children_per_pop: int = 1
    queue_cap: int | None = None
    refill: bool = False
    drop_stale: bool = False
    num_starts: int = 1
    num_threads: int = 1
    num_tries: int = 8
    report_every: int = 256
    memory_limit_bytes: int | None = None
    limits: FusionLimits = field(default_factory=FusionLimits)

    def __post_init__(self) -> None:
        ok = _is_number(self.alpha) and self.alpha >= 1
        _require(ok, "SearchConfig.alpha", "finite, >= 1", self.alpha)
        for name, most in _MOST.items():
            value = getattr(self, name)
            ok = isinstance(value, int) and 1 <= value <= most
            _require(ok, f"SearchConfig.{name}", f"an integer from 1 to {most}", value)
        ok = isinstance(self.num_chains, int) and 0 <= self.num_chains <= _MOST["beta"]
        allowed = f"an integer from 0 to {_MOST['beta']}"
        _require(ok, "SearchConfig.num_chains", allowed, self.num_chains)
        ok = isinstance(self.seed, int) and 0 <= self.seed < 2**63
        _require(ok, "SearchConfig.seed", "an integer in [0, 2**63)", self.seed)
        for name, least in (("max_steps", 0), ("queue_cap", 1), ("time_limit_s", 0)):
            value = getattr(self, name)
            ok = value is None or (_is_number(value) and value >= least)
            allowed = f"None or finite, >= {least}"
            if name != "time_limit_s":
                ok = value is None or (isinstance(value, int) and least <= value < 2**31)
                allowed = f"None or an integer from {least} to 2**31 - 1"
            _require(ok, f"SearchConfig.{name}", allowed, value)
        limit = self.memory_limit_bytes
        ok = limit is None or (isinstance(limit, int) and 0 <= limit < 2**61)
        _require(ok, "SearchConfig.memory_limit_bytes", "None or an integer in [0, 2**61)", limit)
        ok = bool(self.methods) and all(method in EDIT_KINDS for method in self.methods)
        _require(ok, "SearchConfig.methods", f"a non-empty tuple out of {EDIT_KINDS}", self.methods)
        ok = self.num_chains == 0 or all(method.startswith("fuse") for method in self.methods)
        allowed = "0 unless all methods are fusions"
        _require(ok, "SearchConfig.num_chains", allowed, self.num_chains)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> SearchConfig:
        """A configuration by name, with some fields changed.

        ``"paper"``: the defaults. ``"reference-code"``: what the authors' code does instead (alpha
        1.1, 100 strategies of ten children, each of five chains of 1 to 10 fusions that duplicate,
        50 queued at most, no tensor fusion). ``"full"``: everything beyond the paper.

        Raises
        ------
        ValueError
            If there is no preset of that name.
        """
        _require(name in _PRESETS, "the preset", f"one of {tuple(_PRESETS)}", name)
        return cls(**{**_PRESETS[name], **changes})


_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "reference-code": {
        "alpha": 1.1,
        "children_per_pop": 10,
        "num_chains": 5,
        "queue_cap": 50,
        # 100 strategies taken from the queue, ten candidates each; nothing but that ends it.
        "max_steps": 1000,
        "patience": _MOST["patience"],
        "methods": ("fuse-duplicate",),
    },
    "full": {
        # Still worth its seconds on graphs of thousands of ops; smaller ones run dry before.
        "patience": 10_000,
        # The same results as with all of them, on the models of the paper, in half the memory.
        "queue_cap": 1_000,
        "refill": True,
        "drop_stale": True,
        "prefer_few": True,
        "methods": EDIT_KINDS,
        "limits": FusionLimits(bucket_neighbours="production-order"),
    },
}
PRESET_NAMES = tuple(_PRESETS)
