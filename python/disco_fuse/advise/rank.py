"""One rank's steps on the clock of its compute: when gradients are ready, when messages travel.

    begin        gradient 0 .. n ready       backward ends      last message     end
    |-- forward --|--- backward ---------------|...waits...........|-- optimizer --|

On a CPU that clock is the host's. On a GPU a gradient is ready when the last kernel ends that was
launched before the host had it; times of the host only tell the order of launches, so that it does
not matter how well both clocks agree.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from disco_fuse.advise.messages import Message, find_messages, is_nccl, num_elements, on_gpu
from disco_fuse.advise.steps import HostStep, find_steps
from disco_fuse.advise.trace import Event, Trace, read_trace

_COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_SHORTEST_US = 20.0  # shorter operators say more about the profiler than about contention


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A message under way; microseconds on the clock of the rank's compute.

    Attributes
    ----------
    call_us : float
        What the call took from compute; 0 on a GPU, whose compute does not wait for the host.
    start_us, end_us : float
    num_bytes : int
    num_ready : int
        Gradients that had arrived when it was called; 0 for one that carries none.
    """

    call_us: float
    start_us: float
    end_us: float
    num_bytes: int
    num_ready: int


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One step of one rank.

    Attributes
    ----------
    number : int, optional
    begin_us, backward_us, end_us : float
        First work, end of the backward pass without waiting for messages, first work of the next.
    ready_us : tuple of float
        Per gradient, in order of arrival.
    flights : tuple of Flight
        Of gradients, in order of their calls.
    others : tuple of Flight
        AllReduces of anything else.
    copy_us : float
        Copies from buckets back to gradients, after the messages; 0 where they are not known.
    busy_us : float
        During which a kernel of the GPU computes; on a CPU the whole step.
    """

    number: int | None
    begin_us: float
    backward_us: float
    end_us: float
    ready_us: tuple[float, ...]
    flights: tuple[Flight, ...]
    others: tuple[Flight, ...]
    copy_us: float
    busy_us: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """An operator or kernel, to be compared with others of its kind."""

    kind: str
    start_us: float
    end_us: float


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What advice needs of one trace.

    Attributes
    ----------
    name : str
    rank, world_size : int, optional
    gpu : bool
    gradient_bytes : tuple of float
        Per gradient in order of arrival; fractions where a bucket was shared out evenly.
    sent_share : float
        Bytes sent over bytes of gradients; not 1 where a hook compresses them.
    sizes_known : bool
        Whether the trace says how large each gradient is, not only each bucket.
    steps : tuple of RankStep
        Equal in their gradients and messages.
    num_dropped : int
        Steps that were left out: the first one, and those with other gradients or messages.
    work : tuple of Work
        By which contention is estimated; empty where the trace does not tell equal work.
    """

    name: str
    rank: int | None
    world_size: int | None
    gpu: bool
    gradient_bytes: tuple[float, ...]
    sent_share: float
    sizes_known: bool
    steps: tuple[RankStep, ...]
    num_dropped: int
    work: tuple[Work, ...]


def read_rank(path: str) -> RankTrace:
    """Read a trace file and find its steps.

    Raises
    ------
    ValueError
        Naming the file and what is wrong with it, or missing in it.
    """
    return rank_of(read_trace(path))


def rank_of(trace: Trace) -> RankTrace:
    """What a trace says about its rank; see :func:`read_rank`."""
    messages = find_messages(trace)
    found = find_steps(trace, messages)
    kept = _alike(found)
    sizes = [a.num_bytes for a in kept[0].arrivals]
    sizes_known = all(size is not None for size in sizes)
    bucket_bytes = _bucket_bytes(trace, kept[0], sizes)
    clock = _Kernels(trace) if on_gpu(trace) else None
    copies = [event for event in trace.ops if event.name == _COPY_BACK]
    steps = tuple(_step(host, bucket_bytes, clock, copies) for host in kept)
    gradient_bytes = _gradient_bytes(kept[0], sizes, bucket_bytes)
    return RankTrace(
        name=trace.name,
        rank=trace.rank,
        world_size=trace.world_size,
        gpu=clock is not None,
        gradient_bytes=gradient_bytes,
        sent_share=sum(bucket_bytes) / sum(gradient_bytes),
        sizes_known=sizes_known,
        steps=steps,
        num_dropped=len(found) - len(kept),
        work=_work(trace),
    )


def _alike(steps: Sequence[HostStep]) -> list[HostStep]:
    """Without the first of three or more, those with the most usual gradients and messages.

    The first has the profiler's own start in it; DDP builds its buckets anew after the first step
    of a job.
    """
    rest = list(steps[1:] if len(steps) >= 3 else steps)
    patterns = [
        tuple((a.num_bytes, tuple(m.num_bytes for m in a.messages)) for a in step.arrivals)
        for step in rest
    ]
    ((usual, _),) = Counter(patterns).most_common(1)
    return [step for step, pattern in zip(rest, patterns, strict=True) if pattern == usual]


def _bucket_bytes(trace: Trace, step: HostStep, sizes: Sequence[int | None]) -> list[int]:
    """Per message of the step, from the message or from the gradients that arrived before it."""
    found = []
    since = 0
    for arrival, size in zip(step.arrivals, sizes, strict=True):
        since += size or 0
        known = [m.num_bytes for m in arrival.messages]
        if None in known and (since == 0 or len(known) > 1):
            raise ValueError(
                f"{trace.name}: neither the AllReduces nor the gradients say how large they are; "
                "profile with record_shapes=True, or with a newer torch"
            )
        found += [since if num_bytes is None else num_bytes for num_bytes in known]
        since = 0 if known else since
    return found


def _gradient_bytes(
    step: HostStep, sizes: Sequence[int | None], bucket_bytes: Sequence[int]
) -> tuple[float, ...]:
    if None not in sizes:
        return tuple(float(size or 0) for size in sizes)
    shares: list[float] = []
    since = place = 0
    for arrival in step.arrivals:
        since += 1
        if arrival.messages:
            sent = sum(bucket_bytes[place : place + len(arrival.messages)])
            shares += [sent / since] * since
            place += len(arrival.messages)
            since = 0
    return (*shares, *[0.0] * since)


class _Kernels:
    """The clock of a GPU's compute: kernels in order of their launches."""

    def __init__(self, trace: Trace) -> None:
        launched = {
            e.args["correlation"]: e.start_us for e in trace.launches if "correlation" in e.args
        }
        kernels = [k for k in trace.kernels if not is_nccl(k)]
        if not kernels:
            raise ValueError(f"{trace.name}: NCCL kernels, but none that compute")
        rows = sorted(
            (launched[k.args["correlation"]], k.start_us, k.end_us)
            for k in kernels
            if k.args.get("correlation") in launched
        )
        # A few were launched before the trace begins.
        if len(rows) < len(kernels) / 2:
            raise ValueError(
                f"{trace.name}: the launches of {len(kernels) - len(rows)} of {len(kernels)} GPU "
                "kernels are not in the trace, hence not when gradients are ready; profile with "
                "ProfilerActivity.CPU as well, and without another tool that uses CUPTI"
            )
        self._launches = [row[0] for row in rows]
        self._starts = [row[1] for row in rows]
        self._ends = [row[2] for row in rows]
        self._done = list(accumulate(self._ends, max))

    def done_us(self, host_us: float) -> float:
        """When everything has ended that was launched before a moment of the host."""
        place = bisect_right(self._launches, host_us)
        return self._done[place - 1] if place else self._starts[0]

    def span(self, begin_us: float, end_us: float) -> tuple[float, float, float]:
        """Of launches from ``begin_us`` to ``end_us``: first start, last end, time busy."""
        first, last = bisect_left(self._launches, begin_us), bisect_left(self._launches, end_us)
        rows = sorted(zip(self._starts[first:last], self._ends[first:last], strict=True))
        if not rows:
            return self.done_us(begin_us), self.done_us(begin_us), 0.0
        busy, until = 0.0, rows[0][0]
        for start, end in rows:
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return rows[0][0], until, busy

    def next_start_us(self, host_us: float) -> float | None:
        """First start of what is launched from a moment of the host on."""
        place = bisect_left(self._launches, host_us)
        return self._starts[place] if place < len(self._starts) else None


def _step(
    host: HostStep, bucket_bytes: Sequence[int], clock: _Kernels | None, copies: Sequence[Event]
) -> RankStep:
    arrivals = host.arrivals
    sizes = iter(bucket_bytes)
    flights = tuple(
        _flight(message, next(sizes), index + 1, clock)
        for index, arrival in enumerate(arrivals)
        for message in arrival.messages
    )
    others = tuple(_flight(m, m.num_bytes, 0, clock) for m in host.others if m.num_bytes)
    if clock is None:
        mine = [copy for copy in copies if _inside(copy, host)]
        flights = _through_before_copies(flights, mine, len(arrivals), host.end_us)
        waited = sum(m.call.duration_us for m in arrivals[-1].messages)
        return RankStep(
            number=host.number,
            begin_us=host.begin_us,
            backward_us=arrivals[-1].end_us - waited,
            end_us=host.end_us,
            ready_us=tuple(a.ready_us for a in arrivals),
            flights=flights,
            others=others,
            copy_us=sum(copy.duration_us for copy in mine),
            busy_us=host.end_us - host.begin_us,
        )
    begin, last, busy = clock.span(host.begin_us, host.end_us)
    following = clock.next_start_us(host.end_us)
    return RankStep(
        number=host.number,
        begin_us=begin,
        backward_us=clock.done_us(arrivals[-1].end_us),
        end_us=last if following is None else following,
        ready_us=tuple(clock.done_us(a.ready_us) for a in arrivals),
        flights=flights,
        others=others,
        copy_us=0.0,
        busy_us=busy,
    )


def _through_before_copies(
    flights: Sequence[Flight], copies: Sequence[Event], num_gradients: int, end_us: float
) -> tuple[Flight, ...]:
    """Messages end before DDP copies their first gradient back, and before the step does.

    Gloo's thread wakes the one that waits and then writes down the end of the message: on a busy
    processor that may be much later. DDP copies bucket by bucket.
    """
    latest = [end_us] * len(flights)
    if len(copies) == num_gradients:
        firsts = [0, *(flight.num_ready for flight in flights)]
        latest = [
            copies[min(first, num_gradients - 1)].start_us for first in firsts[: len(flights)]
        ]
    return tuple(
        replace(flight, end_us=max(min(flight.end_us, last), flight.start_us))
        for flight, last in zip(flights, latest, strict=True)
    )


def _inside(event: Event, host: HostStep) -> bool:
    return host.begin_us <= event.start_us < host.end_us


def _flight(message: Message, num_bytes: int, num_ready: int, clock: _Kernels | None) -> Flight:
    return Flight(
        call_us=message.call.duration_us if clock is None else 0.0,
        start_us=message.start_us,
        end_us=message.end_us,
        num_bytes=num_bytes,
        num_ready=num_ready,
    )


def _work(trace: Trace) -> tuple[Work, ...]:
    if on_gpu(trace):
        rows = [(_kernel_kind(k), k) for k in trace.kernels if not is_nccl(k)]
    else:
        rows = [
            (f"{e.name} {e.args['Input Dims']}", e)
            for e in trace.ops
            if e.name.startswith("aten::") and num_elements(e.args.get("Input Dims"))
        ]
    return tuple(
        Work(kind=kind, start_us=e.start_us, end_us=e.end_us)
        for kind, e in rows
        if e.duration_us >= _SHORTEST_US or on_gpu(trace)
    )


def _kernel_kind(kernel: Event) -> str:
    args: dict[str, Any] = kernel.args
    return f"{kernel.name} {args.get('grid')} {args.get('block')}"
