"""One run: its files, what their lines made of it, and what was wrong with them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from disco_fuse.dashboard.fields import Event, words
from disco_fuse.dashboard.job_state import JobState
from disco_fuse.dashboard.search_state import FORMAT_VERSION, SearchState
from disco_fuse.dashboard.tail import Tail


class Run:
    """What is known of a search (one file) or of a training (one file per rank).

    Parameters
    ----------
    name : str
        What people call it: its place below the folder that they gave.
    """

    def __init__(self, key: Path, name: str) -> None:
        self.id = hashlib.sha256(os.fsencode(key)).hexdigest()[:12]
        self.name = name
        self.tails: dict[Path, Tail] = {}
        self.version = 0
        self._state: SearchState | JobState | None = None
        self._num_events = self._num_broken = self._num_unknown = 0
        self._foreign: dict[str, str] = {}  # file -> format that is not known

    @property
    def changed_at(self) -> float:
        """When one of its files was last written, in seconds since 1970."""
        return max((tail.changed_at for tail in self.tails.values()), default=0.0)

    def read(self, tail: Tail) -> bool:
        """Take one chunk of one of its files; whether there was anything new."""
        before = (tail.num_restarts, tail.num_too_long, tail.failure)
        lines = tail.read()
        for line in lines:
            self._take(str(tail.path), line)
        if not lines and (tail.num_restarts, tail.num_too_long, tail.failure) == before:
            return False
        self.version += 1
        return True

    def _take(self, source: str, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self._num_broken += 1
            return
        if event.get("event") == "start":
            self._begin(source, event)
        state = None if source in self._foreign else self._state
        if state is not None and state.fold(source, event):
            self._num_events += 1
        else:
            self._num_unknown += 1

    def _begin(self, source: str, event: Event) -> None:
        """The first event of a search, or of a rank of a training."""
        self._foreign.pop(source, None)
        if event.get("version", FORMAT_VERSION) != FORMAT_VERSION:
            self._foreign[source] = words(event, "version", "?")[:40]
        elif "model" in event and "cluster" in event:
            self._state = SearchState(event)
        elif "plan" in event and not isinstance(self._state, JobState):
            self._state = JobState(event)

    def _problems(self) -> list[str]:
        """What people should know about the files."""
        tails = self.tails.values()
        num_broken = self._num_broken + sum(tail.num_too_long for tail in tails)
        num_restarts = sum(tail.num_restarts for tail in tails)
        said = []
        for version in sorted(set(self._foreign.values()))[:3]:
            said.append(f"events of format {version} left out: known is {FORMAT_VERSION}")
        if num_broken:
            said.append(f"{num_broken} broken lines left out")
        if self._num_unknown:
            said.append(f"{self._num_unknown} unknown events left out")
        if num_restarts:
            said.append(f"files cut or replaced {num_restarts} times, and read anew")
        said += [f"{tail.path.name}: {tail.failure}" for tail in tails if tail.failure][:5]
        return said

    def brief(self) -> dict[str, Any]:
        """The line of the list of runs."""
        state = self._state
        empty = {"title": "", "figure_ms": None, "progress": "no events yet", "end": None}
        return {
            "id": self.id,
            "name": self.name,
            "kind": "" if state is None else state.kind,
            "changed_at": self.changed_at,
            **(empty if state is None else state.brief()),
        }

    def snapshot(self) -> dict[str, Any]:
        """All that a page shows, of bounded size."""
        return {
            **self.brief(),
            "num_events": self._num_events,
            "num_files": len(self.tails),
            "problems": self._problems(),
            "state": None if self._state is None else self._state.snapshot(),
        }
