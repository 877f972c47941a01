"""Finds files of events below folders, and follows them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from disco_fuse.dashboard.run_state import Run
from disco_fuse.dashboard.tail import Tail

MAX_FILES = 1000
_MAX_DEPTH = 4  # folders below the one that was given
_MAX_LISTED = 100
_EVENTS = re.compile(r"events.*\.jsonl")
_OF_A_RANK = re.compile(r"events-rank-\d+\.jsonl")


class Watch:
    """The runs whose events lie in some files and folders.

    ``events-rank-R.jsonl`` of one folder are one training; every other ``events*.jsonl`` is a run
    of its own. Links to folders are not followed.

    Parameters
    ----------
    places : sequence of Path
        Files, and folders that are searched four levels deep; also such that are not there yet.

    Attributes
    ----------
    version : int
        Grows whenever there is something new to show.
    runs : dict
        By their ids.
    num_left_out : int
        Files beyond the first ``MAX_FILES``.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self.version = 0
        self.runs: dict[str, Run] = {}
        self.num_left_out = 0
        self._places = tuple(Path(os.path.abspath(place)) for place in places)

    def scan(self) -> None:
        """Look for files that have come, and forget runs whose files have all gone."""
        found: dict[Path, tuple[Path, str]] = {}
        self.num_left_out = 0
        for place in self._places:
            paths = _events_in(place) if place.is_dir() else filter(Path.exists, (place,))
            for path in paths:
                if path not in found and len(found) == MAX_FILES:
                    self.num_left_out += 1
                    continue
                found[path] = self._run_of(path, place)
        known = {path for run in self.runs.values() for path in run.tails}
        for path in sorted(found.keys() - known):
            key, name = found[path]
            run = Run(key, name)
            self.runs.setdefault(run.id, run).tails[path] = Tail(path)
            self.version += 1
        for run in list(self.runs.values()):
            if not any(path in found for path in run.tails):
                del self.runs[run.id]
                self.version += 1

    def read(self) -> Iterator[bool]:
        """Take one chunk of every file; says for each whether there was anything new."""
        for run in list(self.runs.values()):
            for tail in list(run.tails.values()):
                is_new = run.read(tail)
                self.version += is_new
                yield is_new

    def _run_of(self, path: Path, place: Path) -> tuple[Path, str]:
        """What names the run that a file belongs to, and what people call it."""
        key = path.parent if _OF_A_RANK.fullmatch(path.name) else path
        if path == place:
            return key, str(key)
        shown = Path(place.name) / key.relative_to(place)
        return key, str(shown.parent if path.name == "events.jsonl" else shown)

    def overview(self) -> dict[str, Any]:
        """The list of runs, those written last first."""
        runs = sorted(self.runs.values(), key=lambda run: (-run.changed_at, run.name))
        return {
            "places": [str(place) for place in self._places],
            "num_runs": len(runs),
            "num_left_out": self.num_left_out,
            "runs": [run.brief() for run in runs[:_MAX_LISTED]],
        }


def _events_in(place: Path) -> Iterator[Path]:
    """Files of events in a folder; none if it is gone."""
    depth = len(place.parts)
    for folder, folders, files in os.walk(place):
        folders.sort()
        if len(Path(folder).parts) - depth >= _MAX_DEPTH:
            folders.clear()
        yield from (Path(folder, name) for name in sorted(files) if _EVENTS.fullmatch(name))
