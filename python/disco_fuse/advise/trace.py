"""Reads a trace that the PyTorch profiler (Kineto) has exported, plain or compressed by gzip.

Only what advice needs is kept: operators and annotations of the host, kernels of the GPU, and the
host calls that launched them. Old exports name the categories differently and may be a bare list.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_fuse.simulate import STREAMS

# Category as exported, in lower case -> what it is here. The second names are those of torch 1.8
# to 1.11 (pytorch/kineto, libkineto/src/output_json.cpp and its history).
_ROLES = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "op",
    "kernel": "kernel",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "runtime": "launch",
}
_OTHER_PACKERS = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}
_MOST_US = 1e18
_HOW = "export it with torch.profiler.profile(...).export_chrome_trace or tensorboard_trace_handler"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that took time; microseconds of the clock of its trace.

    Attributes
    ----------
    name : str
    thread : str
        Process and thread, or device and stream.
    start_us, end_us : float
    args : dict
        What the profiler wrote beside it.
    """

    name: str
    thread: str
    start_us: float
    end_us: float
    args: dict[str, Any]

    @property
    def duration_us(self) -> float:
        """From start to end."""
        return self.end_us - self.start_us


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What one rank's profiler saw, each list in order of start.

    Attributes
    ----------
    name : str
        Of the file, for messages.
    rank, world_size : int, optional
        Where the trace says so.
    ops, kernels, launches : tuple of Event
        Of the host, of the GPU, and the host's calls of CUDA.
    """

    name: str
    rank: int | None
    world_size: int | None
    ops: tuple[Event, ...]
    kernels: tuple[Event, ...]
    launches: tuple[Event, ...]


def read_trace(path: str | Path) -> Trace:
    """Read one file.

    Raises
    ------
    ValueError
        Naming the file, if it is missing, cut off, compressed otherwise, or no trace.
    """
    text = _text(Path(path))
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        # What was cut off ends where the parser gives up; other text fails long before.
        cut = error.pos >= len(error.doc.rstrip()) - 1 or error.msg.startswith("Unterminated")
        if cut and error.pos > 0:
            raise ValueError(
                f"{path}: the trace is truncated: it ends after {len(error.doc)} characters, inside"
                " an event; was the job ended while it wrote?"
            ) from error
        raise ValueError(f"{path}: not a trace: no JSON ({error}); {_HOW}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: not a trace: nested too deeply") from error
    except ValueError as error:  # a number of more digits than Python reads
        raise ValueError(f"{path}: not a trace: {error}") from error
    rows = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(rows, list) or not any(isinstance(row, dict) and "ph" in row for row in rows):
        raise ValueError(f"{path}: not a trace: it has no list of traceEvents; {_HOW}")
    try:
        _refuse_own_timeline(rows)
        return _trace(str(path), data if isinstance(data, dict) else {}, rows)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: not a trace of the PyTorch profiler: {error}") from error


def _refuse_own_timeline(rows: list[Any]) -> None:
    """ValueError that says what DisCoFuse's own timelines are, and what reads them.

    Their lanes are named after the streams and their events have no category, which all of the
    profiler's have.
    """
    known = [row for row in rows if isinstance(row, dict)]
    lanes = {
        (row.get("args") or {}).get("name") for row in known if row.get("name") == "thread_name"
    }
    if not lanes.issuperset(STREAMS) or any("cat" in row for row in known):
        return
    if any(row.get("name") == "process_name" for row in known):
        raise ValueError(
            "it is the measured timeline of 'disco-fuse run --trace'; Perfetto opens it, and "
            "'disco-fuse run --json' says where its time went"
        )
    raise ValueError(
        "it is the simulated timeline of 'disco-fuse tune -O'; Perfetto opens it, and 'disco-fuse "
        "explain' reads the folder in which it lies"
    )


def _text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"no file {path}")
    content = path.read_bytes()
    for magic, packer in _OTHER_PACKERS.items():
        if content.startswith(magic):
            raise ValueError(f"{path}: compressed by {packer}; allowed are gzip and no compression")
    try:
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        return content.decode()
    except EOFError as error:
        raise ValueError(f"{path}: the trace is truncated: its gzip stream has no end") from error
    except (OSError, zlib.error) as error:
        raise ValueError(f"{path}: gzip cannot read it: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a trace: no text ({error.reason}); {_HOW}") from error


def _trace(name: str, data: dict[str, Any], rows: list[Any]) -> Trace:
    found: dict[str, list[Event]] = {"op": [], "kernel": [], "launch": []}
    for row in rows:
        if not isinstance(row, dict) or row.get("ph") != "X":
            continue
        role = _ROLES.get(str(row.get("cat", "")).lower())
        if role is None or "ts" not in row:
            continue
        start = _number(row, "ts")
        event = Event(
            name=str(row.get("name", "")),
            thread=f"{row.get('pid')}/{row.get('tid')}",
            start_us=start,
            end_us=start + (_number(row, "dur") if "dur" in row else 0.0),
            args=_args(row),
        )
        found[role].append(event)
    rank, world_size = _place(data.get("distributedInfo") or {})
    ordered = {
        role: tuple(sorted(events, key=lambda event: (event.start_us, -event.end_us)))
        for role, events in found.items()
    }
    return Trace(
        name=name,
        rank=rank,
        world_size=world_size,
        ops=ordered["op"],
        kernels=ordered["kernel"],
        launches=ordered["launch"],
    )


def _number(row: dict[str, Any], name: str) -> float:
    value = float(row[name])
    # No clock of microseconds says more; sums of such numbers stay finite.
    if not abs(value) < _MOST_US:
        raise ValueError(f"{name} {value} of event {row.get('name')!r} is no time")
    return value


def _args(row: dict[str, Any]) -> dict[str, Any]:
    args = row.get("args") or {}
    if not isinstance(args, dict) or not isinstance(args.get("correlation", 0), int | float | str):
        said = str(args)[:80]
        raise ValueError(f"args of event {row.get('name')!r} are none of the profiler: {said}")
    return args


def _place(about: dict[str, Any]) -> tuple[int | None, int | None]:
    """Rank and world size, as far as they are said."""
    rank, world_size = (
        int(about[name]) if name in about else None for name in ("rank", "world_size")
    )
    if world_size is not None and world_size < 1:
        raise ValueError(f"distributedInfo has world_size {world_size}; allowed: from 1")
    if rank is not None and not 0 <= rank < (world_size or rank + 1):
        raise ValueError(f"distributedInfo has rank {rank} of world_size {world_size}")
    return rank, world_size
