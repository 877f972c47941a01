"""Looks on while ``disco-fuse tune`` searches: a bar, a file of events, a list for the report."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from disco_fuse.baselines import BaselineResult
from disco_fuse.cli.search_bar import SearchBar
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.search import SearchEvent
from disco_fuse.trainer import EventLog
from disco_fuse.tuning.events import SearchEvents, end_event, limits_event, start_event
from disco_fuse.tuning.problem import Problem
from disco_fuse.tuning.tune import TuningResult


class SearchWatch:
    """Takes the events of searches; with ``with`` around it, a bar on a terminal's standard error.

    Parameters
    ----------
    file : Path, optional
        Where lines for ``disco-fuse dashboard`` are appended.
    cluster, config, preset
        Of the search, for its first line.

    Attributes
    ----------
    events : list of SearchEvent
        Of the last search.
    """

    def __init__(
        self, file: Path | None, cluster: ClusterSpec, config: SearchConfig, preset: str
    ) -> None:
        self.events: list[SearchEvent] = []
        self._log = None if file is None else EventLog(file)
        self._search = (cluster, config, preset)
        self._problem: Problem | None = None
        self._told: SearchEvents | None = None
        self._bar = SearchBar(config)

    def __enter__(self) -> SearchWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, traceback)

    @property
    def failure(self) -> str | None:
        """Why events are missing in the file, if they are."""
        return None if self._log is None else self._log.failure

    def begin(self, problem: Problem) -> None:
        """A search of this problem begins."""
        self._problem = problem
        self.events = []
        self._bar.search()
        if self._log is not None:
            self._log(start_event(problem, *self._search))
            self._told = SearchEvents(problem.graph, self._log)

    def limits(self, best: BaselineResult, lower_bound_us: float) -> None:
        """What the search that has begun will be compared with."""
        if self._log is not None:
            self._log(limits_event(best, lower_bound_us))

    def __call__(self, event: SearchEvent) -> None:
        """Something happened; fewer candidates than before mean that a new search has begun."""
        if self.events and event.num_candidates < self.events[-1].num_candidates:
            assert self._problem is not None
            self.begin(self._problem)
        self.events.append(event)
        self._bar(event)
        if self._told is not None:
            self._told(event)

    def end(self, result: TuningResult) -> None:
        """The search has ended."""
        if self._log is not None:
            self._log(end_event(result))
