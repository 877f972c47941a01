"""The AllReduces of a trace: who asked for each, how many bytes it carries, when it was under way.

    host    c10d::allreduce_ > record_param_comms > nccl:all_reduce      the call
    GPU     ncclDevKernel_AllReduce_Sum_f32_RING_LL                      the transfer (NCCL)
    thread  gloo:all_reduce                                              the transfer (gloo)

Names of the calls and of their arguments: pytorch/pytorch, torch/csrc/distributed/c10d (Ops.cpp,
ParamCommsUtils.hpp, ProcessGroupGloo.cpp) and torch/csrc/profiler/util.cpp; of the kernels:
NVIDIA/nccl, before 2.18 ncclKernel_..., before 2.7 ncclAllReduceRing...Kernel.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from disco_fuse.advise.trace import Event, Trace

# Bytes of an element, by the name that c10, torch or the profiler gives a type.
_INTEGER_BYTES = {"int": 4, "int32": 4, "long": 8, "long int": 8, "int64": 8}
_ITEM_BYTES = {
    "float": 4,
    "float32": 4,
    "double": 8,
    "float64": 8,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    **_INTEGER_BYTES,
}
_MOST_ELEMENTS = 2**58
_CALLS = ("c10d::allreduce_", "record_param_comms", "nccl:all_reduce")
_GLOO = "gloo:all_reduce"
_OTHER_COLLECTIVES = ("reducescatter", "reduce_scatter", "allgather", "all_gather")


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One AllReduce.

    Attributes
    ----------
    call : Event
        The host's call; it returns before the message is through.
    start_us, end_us : float
        Under way, on the clock of the GPU if that carries it. With NCCL the first part is waiting
        for the ranks that come later.
    num_bytes : int, optional
        None where the trace does not say.
    is_integer : bool
        Whether it is known to hold integers, hence no gradients: DDP's map of unused parameters,
        for instance, which travels behind the last bucket.
    """

    call: Event
    start_us: float
    end_us: float
    num_bytes: int | None
    is_integer: bool = False


def on_gpu(trace: Trace) -> bool:
    """Whether the step's work is in kernels of a GPU."""
    return bool(trace.kernels)


def is_nccl(kernel: Event) -> bool:
    """Whether a kernel is NCCL's."""
    return kernel.name.startswith("nccl")


def item_bytes(dtype: str) -> int | None:
    """Bytes of an element of a type; None for a name that is not known."""
    return _ITEM_BYTES.get(dtype.replace("c10::", "").lower())


def num_elements(dims: Any) -> int | None:
    """Elements of a tensor ``[2, 3]``, or of a list of tensors ``[[2, 3], [4]]``."""
    if not isinstance(dims, list):
        return None
    if all(isinstance(size, int) for size in dims):
        product = 1
        for size in dims:
            product *= size
        return product
    parts = [num_elements(part) for part in dims]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def tensor_bytes(event: Event) -> int | None:
    """Bytes of the first input of an operator; needs a trace made with ``record_shapes=True``."""
    dims, types = event.args.get("Input Dims"), event.args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list) or not dims or not types:
        return None
    return _known_bytes(num_elements(dims[0]), item_bytes(str(types[0])))


def find_messages(trace: Trace) -> tuple[Message, ...]:
    """All AllReduces in order of their calls.

    Raises
    ------
    ValueError
        Naming the trace, if there are none, or none that says how long it took.
    """
    calls = outermost(event for event in trace.ops if _is_call(event))
    kernels = [kernel for kernel in trace.kernels if is_nccl(kernel)]
    _refuse_others(trace, calls, kernels)
    if on_gpu(trace):
        transfers = [kernel for kernel in kernels if "allreduce" in _plain(kernel)]
        owners = _owners(trace, calls, transfers)
    else:
        transfers = [event for event in trace.ops if event.name == _GLOO]
        owners = _in_turn(calls, transfers)
    if not owners:
        what = "no NCCL kernel of an AllReduce" if on_gpu(trace) else "no gloo:all_reduce"
        raise ValueError(
            f"{trace.name}: AllReduces are called, but the trace has {what}, hence not how long "
            "they take; profile with ProfilerActivity.CUDA on a GPU, and more than one rank"
        )
    if all(transfer.duration_us <= 0 for _, transfer in owners):
        raise ValueError(
            f'{trace.name}: none of its AllReduces says how long it took ("dur" of '
            f"{owners[0][1].name!r})"
        )
    inner = _inner_calls(trace, calls)
    return tuple(
        Message(
            call=calls[index],
            start_us=transfer.start_us,
            end_us=transfer.end_us,
            num_bytes=_message_bytes([transfer, calls[index], *inner[index]]),
            is_integer=any(map(_is_integer, [transfer, *inner[index]])),
        )
        for index, transfer in owners
    )


class Containers:
    """Intervals of which none overlaps another one of its thread; finds the one around an event."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._by_thread: dict[str, list[int]] = {}
        for index, event in enumerate(events):
            self._by_thread.setdefault(event.thread, []).append(index)

    def around(self, event: Event) -> int | None:
        """Index of the interval in which ``event`` starts, on its thread."""
        mine = self._by_thread.get(event.thread, [])
        starts_before = bisect_right(mine, event.start_us, key=lambda i: self._events[i].start_us)
        if starts_before == 0:
            return None
        index = mine[starts_before - 1]
        return index if event.start_us <= self._events[index].end_us else None


def outermost(events: Iterable[Event]) -> list[Event]:
    """Events, in order of start, that lie inside no other one of the same thread."""
    ends: dict[str, float] = {}
    kept = []
    for event in events:
        if event.start_us >= ends.get(event.thread, float("-inf")):
            kept.append(event)
            ends[event.thread] = event.end_us
    return kept


def _plain(kernel: Event) -> str:
    named = f"{kernel.name} {kernel.args.get('Collective name', '')}"
    return named.lower().replace("_", "")


def _is_call(event: Event) -> bool:
    if event.name not in _CALLS:
        return False
    collective = str(event.args.get("Collective name", "allreduce"))
    return collective.lower().replace("_", "") == "allreduce"


def _refuse_others(trace: Trace, calls: Sequence[Event], kernels: Sequence[Event]) -> None:
    if calls:
        return
    names = {event.name for event in trace.ops} | {kernel.name for kernel in kernels}
    other = sorted(n for n in names if any(part in n.lower() for part in _OTHER_COLLECTIVES))
    if other:
        raise ValueError(
            f"{trace.name}: no AllReduce, but {other[0]!r}: advice is for DistributedDataParallel, "
            "not for sharded training"
        )
    if kernels:
        raise ValueError(
            f"{trace.name}: NCCL kernels, but no AllReduce called by the host: profile with "
            "ProfilerActivity.CPU as well"
        )
    work = "GPU kernels" if trace.kernels else "operators" if trace.ops else "nothing"
    raise ValueError(
        f"{trace.name}: no AllReduce: the trace has {work} of a job without "
        "DistributedDataParallel, or of one rank"
    )


def _owners(
    trace: Trace, calls: Sequence[Event], kernels: Sequence[Event]
) -> list[tuple[int, Event]]:
    """Call and kernel, by the launch inside of the call."""
    launched = {e.args["correlation"]: e for e in trace.launches if "correlation" in e.args}
    containers = Containers(calls)
    pairs = []
    for kernel in kernels:
        launch = launched.get(kernel.args.get("correlation"))
        index = None if launch is None else containers.around(launch)
        if index is not None:
            pairs.append((index, kernel))
    # A call of several kernels is one message: from the first start to the last end.
    merged: dict[int, Event] = {}
    for index, kernel in pairs:
        first = merged.get(index, kernel)
        merged[index] = Event(
            name=first.name,
            thread=first.thread,
            start_us=min(first.start_us, kernel.start_us),
            end_us=max(first.end_us, kernel.end_us),
            args=first.args,
        )
    return sorted(merged.items())


def _in_turn(calls: Sequence[Event], transfers: Sequence[Event]) -> list[tuple[int, Event]]:
    """Gloo takes messages in the order of the calls; one at an edge of the trace may lack half."""
    pairs = []
    place = 0
    for index, call in enumerate(calls):
        while place < len(transfers) and transfers[place].start_us < call.start_us:
            place += 1
        if place < len(transfers):
            pairs.append((index, transfers[place]))
            place += 1
    return pairs


def _inner_calls(trace: Trace, calls: Sequence[Event]) -> list[list[Event]]:
    inner: list[list[Event]] = [[] for _ in calls]
    containers = Containers(calls)
    for event in trace.ops:
        if event.name in _CALLS:
            index = containers.around(event)
            if index is not None:
                inner[index].append(event)
    return inner


def _is_integer(event: Event) -> bool:
    types = event.args.get("Input type")
    named = [event.args.get("dtype"), *(types[:1] if isinstance(types, list) else [])]
    return any(str(name).lower() in _INTEGER_BYTES for name in named)


def _message_bytes(events: Iterable[Event]) -> int | None:
    """From the first that tells: the profiler's "In msg nelems", else the shapes of the inputs."""
    found = list(events)
    for event in found:
        elements, size = event.args.get("In msg nelems"), item_bytes(str(event.args.get("dtype")))
        num_bytes = _known_bytes(elements if isinstance(elements, int) else None, size)
        if num_bytes is not None:
            return num_bytes
    return next((size for event in found if (size := tensor_bytes(event)) is not None), None)


def _known_bytes(elements: int | None, size: int | None) -> int | None:
    """None unless both are known and in the range of a size in memory."""
    return elements * size if elements and size and 0 < elements < _MOST_ELEMENTS else None
