"""What the shell offers for names that only this program knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from disco_fuse import zoo
from disco_fuse.baselines import baseline_names
from disco_fuse.cluster import preset_names

_Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offering(names: Callable[[], Iterable[str]], separator: str = "") -> _Offer:
    """Names that begin as the word does, or as its part behind the separator; else files."""

    def offer(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, found, word = (
            incomplete.rpartition(separator) if separator else ("", "", incomplete)
        )
        fitting = [before + found + name for name in names() if name.startswith(word)]
        if fitting:
            return [CompletionItem(name) for name in fitting]
        return [CompletionItem(incomplete, type="file")]

    return offer


models = _offering(zoo.models)
clusters = _offering(preset_names)
many_clusters = _offering(preset_names, ",")
baselines = _offering(lambda: [f"baseline:{name}" for name in baseline_names()])
