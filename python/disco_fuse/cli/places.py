"""What a call must not do to files: overwrite what it reads, or write two results to one place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click

from disco_fuse.plan import CUBIN_FILE, PLAN_FILE, STEP_FILE
from disco_fuse.tuning.choice import PROBLEM_FILE, STRATEGY_FILE

_EVENTS = "events*.jsonl"
_OWN_FILES = (STRATEGY_FILE, PROBLEM_FILE, PLAN_FILE, STEP_FILE, CUBIN_FILE, "timeline.trace.json")


def check_places(context: click.Context) -> None:
    """Refuse outputs that are inputs, are the same, or belong to a plan or strategy.

    Outputs are the files of options whose type is a ``click.Path(writable=True)``, and folders that
    need not exist; any other value of the call that is the name of a file is taken for an input.

    Raises
    ------
    click.UsageError
    """
    outputs: dict[str, Path] = {}
    inputs: list[Path] = []
    folders: list[Path] = []
    for parameter in context.command.params:
        assert parameter.name is not None
        value, kind = context.params.get(parameter.name), parameter.type
        if (
            not isinstance(kind, click.Path)
            or kind.exists
            or (kind.file_okay and not kind.writable)
        ):
            inputs += _files(value)
        elif value is not None and not kind.file_okay:
            folders.append(Path(value))
        elif value not in (None, "-"):
            outputs[max(parameter.opts, key=len)] = Path(value)
    seen: dict[str, Path] = {}
    for name, path in outputs.items():
        if os.path.exists(path) and not os.path.isfile(path):
            continue  # a device, such as /dev/null
        same = next((other for other in seen if _same(path, seen[other])), None)
        if same is not None:
            raise click.UsageError(f"{same} and {name} are both {path}")
        if any(_same(path, file) for file in inputs):
            raise click.UsageError(f"{name}: {path} is an input, and would be overwritten")
        if _is_own(name, path, folders):
            raise click.UsageError(f"{name}: {path} belongs to the strategy or plan in its folder")
        seen[name] = path


def _files(value: Any) -> Iterator[Path]:
    """The files that a value, or one of a tuple of them, names."""
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, str | Path):
            text = str(one)
            file, _, _ = text.rpartition(":")  # 'file.py:function'
            yield from (Path(word) for word in (text, file) if os.path.isfile(word))


def _same(one: Path, other: Path) -> bool:
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _is_own(option: str, path: Path, folders: list[Path]) -> bool:
    """Whether the folder of ``path`` holds, or will hold, something else of that name."""
    parent = path.parent
    if option != "--events" and fnmatch(path.name, _EVENTS):
        return any(_same(parent, folder) for folder in folders)
    if path.name not in _OWN_FILES:
        return False
    there = any((parent / name).is_file() for name in (STRATEGY_FILE, STEP_FILE))
    return there or any(_same(parent, folder) for folder in folders)
