"""The bar of commands that import a model and search: what is done now, and until when."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from tqdm import tqdm

from disco_fuse.config import SearchConfig
from disco_fuse.search import SearchEvent

_WORD = "{desc} ..."


class SearchBar:
    """On a terminal's standard error; to be left with ``with``.

    Parameters
    ----------
    config : SearchConfig
        Says when the search ends: after so many candidates (the bar then has an end and shows the
        time left), after so long, or after so many candidates without improvement.
    """

    def __init__(self, config: SearchConfig) -> None:
        self._config = config
        self._last_gain = 0
        # disable=None: no bar unless standard error is a terminal.
        self._bar: Any = tqdm(
            file=sys.stderr,
            unit=" candidates",
            desc="import",
            bar_format=_WORD,
            disable=None,
            leave=False,
        )

    def __enter__(self) -> SearchBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def stage(self, text: str) -> None:
        """What follows takes a while and tells nothing of itself."""
        self._bar.bar_format = _WORD
        self._bar.set_description_str(text)

    def search(self) -> None:
        """A search begins."""
        steps = self._config.max_steps
        self._last_gain = 0
        self._bar.bar_format = None
        self._bar.set_description_str("search", refresh=False)
        self._bar.reset(None if steps is None else steps * self._config.num_starts)

    def __call__(self, event: SearchEvent) -> None:
        """Something happened in the search."""
        if event.improved:
            self._last_gain = event.num_candidates
        best = f"best {event.makespan_us / 1e3:.2f} ms, {self._left(event)}"
        self._bar.set_postfix_str(best, refresh=False)
        self._bar.update(event.num_candidates - self._bar.n)

    def _left(self, event: SearchEvent) -> str:
        limit_s = self._config.time_limit_s
        if limit_s is not None:
            return f"at most {max(0.0, limit_s - event.elapsed_s):.0f} s left"
        unsuccessful = event.num_candidates - self._last_gain
        return f"{unsuccessful} since, of {self._config.patience} at most"
