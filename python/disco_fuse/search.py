"""The search for a strategy: DisCo's backtracking, and an exhaustive one for tiny graphs."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from disco_fuse import _ffi
from disco_fuse.config import (
    EDIT_KINDS,
    PAPER_EDIT_KINDS,
    ClusterSpec,
    FusionLimits,
    SearchConfig,
)
from disco_fuse.cost_model.base import CostModel
from disco_fuse.graph import OpGraph
from disco_fuse.simulate import Timeline, native_cluster, simulate
from disco_fuse.strategy import Edit, Strategy, native_limits

_CONTINUE, _TIME_LIMIT, _INTERRUPTED = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class SearchEvent:
    """Where a search stands; with several starts, all of them together.

    Attributes
    ----------
    num_steps : int
        Strategies taken from the queue so far.
    num_candidates : int
        Candidates judged so far.
    makespan_us : float
        Of the best strategy so far; infinite while none fits the memory limit.
    improved : bool
        Whether the event reports a new best strategy (else it is one of a regular series).
    elapsed_s : float
        Seconds since the search began.
    num_queued : int
        Strategies that wait to be followed up; of starts that have ended, what they left.
    best : Strategy or None
        The new best strategy, list-scheduled, if the event reports one.
    timeline : callable or None
        Simulates it, with the cost model and the cluster of the search.
    """

    num_steps: int
    num_candidates: int
    makespan_us: float
    improved: bool
    elapsed_s: float
    num_queued: int
    best: Strategy | None = None
    timeline: Callable[[], Timeline] | None = None


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes
    ----------
    best : Strategy
        In list-scheduled order.
    makespan_us, initial_makespan_us : float
        Of ``best`` and of the unfused strategy, both list-scheduled.
    lower_bound_us : float
        No legal strategy is faster; see ``src/search/lower_bound.h`` for the proof.
    start : int
        Where ``edits`` start: 0 is the unfused strategy, i the i-th of ``initial``, from 1.
    edits : tuple of Edit
        ``replay(graph, edits, start, limits=config.limits)`` has the hash of ``best``.
    found_us : float
        Makespan of the best that was reached from the unfused strategy alone, before ``initial``
        was looked at. ``makespan_us`` is smaller if ``initial`` helped. Like ``best_start_us``
        infinite if that needs more memory than allowed.
    best_start : int
        The fastest start as it is, numbered like ``start``; so 0 if none of ``initial`` is faster
        than the unfused strategy.
    best_start_us : float
        Its makespan.
    num_steps, num_candidates : int
        Strategies taken from the queue, and candidates judged.
    num_found_candidates : int
        Candidates judged before ``initial`` was looked at.
    num_unseen : int
        Candidates with at least one edit that the search had not met before.
    num_looked_up : int
        Kernels whose time was needed because a candidate has them and the one before it has not.
    num_priced : int
        Different ones among those, for which the cost model was asked. The exhaustive search
        counts neither.
    stop_reason : str
        "queue-empty", "patience", "max-steps", "time-limit", "interrupted" or "exhausted"; of
        several searches that of the best, unless one was interrupted or ran out of time.
    """

    best: Strategy
    makespan_us: float
    initial_makespan_us: float
    lower_bound_us: float
    start: int
    edits: tuple[Edit, ...]
    found_us: float
    best_start: int
    best_start_us: float
    num_steps: int
    num_candidates: int
    num_found_candidates: int
    num_unseen: int
    num_looked_up: int
    num_priced: int
    stop_reason: str


def search(
    graph: OpGraph,
    cost_model: CostModel,
    cluster: ClusterSpec,
    config: SearchConfig | None = None,
    initial: Sequence[Strategy] = (),
    on_event: Callable[[SearchEvent], None] | None = None,
) -> SearchResult:
    """Algorithm 1 of Yi et al., TPDS 2022 (arXiv 2209.12769); see ``src/search/backtracking.h``.

    The same arguments give the same result on every machine, unless a time limit or Ctrl-C ends
    the search, after which the best strategy so far is returned. Cost models in Python are called
    by one thread only, whatever ``config.num_threads`` is.

    Parameters
    ----------
    initial : sequence of Strategy
        Where a second phase of the search starts, after one from the unfused strategy; the result
        is never worse than any of them. The phases share ``max_steps`` and the time limit.
    on_event : callable, optional
        Called on every improvement and every ``config.report_every`` candidates.

    Raises
    ------
    ValueError
        If the cost model gives no valid time, or no strategy that was found fits the memory limit.
    """
    config = SearchConfig() if config is None else config
    started = time.monotonic()
    with _interrupt_flag() as interrupted:

        def observe(
            steps: int,
            candidates: int,
            makespan_ns: int,
            found: Any,
            run: int,
            phase: int,
            queued: int,
        ) -> int:
            elapsed = time.monotonic() - started
            if on_event is not None:
                best = None if found is None else Strategy(found, graph)
                on_event(
                    SearchEvent(
                        num_steps=steps,
                        num_candidates=candidates,
                        makespan_us=_time_us(makespan_ns),
                        improved=found is not None,
                        elapsed_s=elapsed,
                        num_queued=queued,
                        best=best,
                        timeline=None
                        if best is None
                        else partial(simulate, graph, best, cost_model, cluster),
                    )
                )
            if interrupted():
                return _INTERRUPTED
            if config.time_limit_s is None:
                return _CONTINUE
            end = config.time_limit_s * _share(config, cost_model, run, phase, bool(initial))
            return _TIME_LIMIT if elapsed >= end else _CONTINUE

        return _result(
            graph,
            _ffi.function("search.search")(
                graph._handle,
                cost_model._native(graph),
                native_cluster(cluster),
                _native_config(config),
                [strategy.handle_for(graph) for strategy in initial],
                observe,
            ),
        )


def exhaustive(
    graph: OpGraph,
    cost_model: CostModel,
    cluster: ClusterSpec,
    *,
    limits: FusionLimits | None = None,
    max_states: int = 100_000,
    methods: tuple[str, ...] = PAPER_EDIT_KINDS,
    all_orders: bool = False,
) -> SearchResult:
    """The best of all strategies that legal edits reach: an oracle for tiny graphs.

    Parameters
    ----------
    max_states : int
        Strategies to visit at most.
    methods : tuple of str
        Kinds of edits, as in :class:`~disco_fuse.config.SearchConfig`.
    all_orders : bool
        Try every order of the units of every strategy, and not only the list schedule: for graphs
        of up to 6 ops or so.

    Raises
    ------
    ValueError
        If there are more than ``max_states`` strategies.
    """
    return _result(
        graph,
        _ffi.function("search.exhaustive")(
            graph._handle,
            cost_model._native(graph),
            native_cluster(cluster),
            native_limits(limits),
            max_states,
            _kinds(methods),
            all_orders,
        ),
    )


def _share(
    config: SearchConfig, cost_model: CostModel, run: int, phase: int, two_phases: bool
) -> float:
    """The part of the time limit after which a phase of a search has to end.

    Searches that have to wait for a thread get equal parts, and so do the phases of each.
    """
    at_once = min(config.num_threads if cost_model.thread_safe else 1, config.num_starts)
    waves = -(-config.num_starts // at_once)
    done = 1.0 if phase == 1 or not two_phases else 0.5
    return (run // at_once + done) / waves


@contextmanager
def _interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Turns Ctrl-C into a flag while C++ runs, so that it costs no result.

    Without it KeyboardInterrupt would surface inside whatever callback runs next and discard the
    best strategy. Signals reach the main thread only.
    """
    hits: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        del frame
        hits.append(signum)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(hits)
    finally:
        signal.signal(signal.SIGINT, previous)


def _kinds(methods: Sequence[str]) -> list[int]:
    return [EDIT_KINDS.index(method) for method in methods]


def _native_config(config: SearchConfig) -> dict[str, Any]:
    return {
        "alpha": float(config.alpha),
        "beta": config.beta,
        "patience": config.patience,
        "seed": config.seed,
        "max_steps": -1 if config.max_steps is None else config.max_steps,
        "children_per_pop": config.children_per_pop,
        "queue_cap": -1 if config.queue_cap is None else config.queue_cap,
        "prefer_few": config.prefer_few,
        "num_chains": config.num_chains,
        "refill": config.refill,
        "drop_stale": config.drop_stale,
        "num_starts": config.num_starts,
        "num_threads": config.num_threads,
        "num_tries": config.num_tries,
        "report_every": config.report_every,
        "memory_limit": -1 if config.memory_limit_bytes is None else config.memory_limit_bytes,
        "methods": _kinds(config.methods),
        "limits": native_limits(config.limits),
    }


def _time_us(nanoseconds: int) -> float:
    """Infinite for the largest time there is, which stands for a strategy over the memory limit."""
    return math.inf if nanoseconds == 2**63 - 1 else nanoseconds / 1000


def _result(graph: OpGraph, parts: Any) -> SearchResult:
    handle, numbers, edits, stop_reason = parts
    makespan, initial, bound, start, found, best_start, best_start_ns, *counts = _ffi.array(
        numbers
    ).tolist()
    steps, candidates, found_candidates, unseen, looked_up, priced = counts
    rows = _ffi.array(edits).reshape(-1, 3).tolist()
    return SearchResult(
        best=Strategy(handle, graph),
        makespan_us=makespan / 1000,
        initial_makespan_us=initial / 1000,
        lower_bound_us=bound / 1000,
        start=start,
        edits=tuple(Edit(kind=EDIT_KINDS[kind], producer=p, consumer=c) for kind, p, c in rows),
        found_us=_time_us(found),
        best_start=best_start,
        best_start_us=_time_us(best_start_ns),
        num_steps=steps,
        num_candidates=candidates,
        num_found_candidates=found_candidates,
        num_unseen=unseen,
        num_looked_up=looked_up,
        num_priced=priced,
        stop_reason=str(stop_reason),
    )
