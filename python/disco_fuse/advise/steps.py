"""Where the steps of a trace begin and end on the host, and the backward pass of each.

    ProfilerStep#7 [ forward | AccumulateGrad x n, AllReduce calls | Optimizer.step ] ProfilerStep#8

Without ProfilerStep annotations a step goes from one optimizer step to the next, else from one
forward pass to the next, else from one period of the sequence of messages to the next.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from disco_fuse.advise.messages import Containers, Message, on_gpu, outermost, tensor_bytes
from disco_fuse.advise.trace import Trace

_STEP = re.compile(r"ProfilerStep#?\s*(\d{1,18})")
_FORWARD = "DistributedDataParallel.forward"
_OPTIMIZER = "Optimizer.step"
ACCUMULATE = "torch::autograd::AccumulateGrad"
_EVALUATE = f"autograd::engine::evaluate_function: {ACCUMULATE}"


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A gradient that the backward pass has finished.

    Attributes
    ----------
    ready_us : float
        Host time at which DDP has it, before it calls an AllReduce because of it.
    end_us : float
        Host time at which that call has returned.
    num_bytes : int, optional
        None without ``record_shapes=True``.
    messages : tuple of Message
        The AllReduces that it set off.
    """

    ready_us: float
    end_us: float
    num_bytes: int | None
    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class HostStep:
    """One step on the host's clock.

    Attributes
    ----------
    number : int, optional
        Of ``ProfilerStep#``.
    begin_us, end_us : float
    arrivals : tuple of Arrival
        Of the backward pass that sends gradients, in order.
    others : tuple of Message
        AllReduces that carry no gradients.
    """

    number: int | None
    begin_us: float
    end_us: float
    arrivals: tuple[Arrival, ...]
    others: tuple[Message, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The AllReduces of the gradients."""
        return tuple(message for arrival in self.arrivals for message in arrival.messages)


@dataclass(frozen=True, kw_only=True)
class _Window:
    number: int | None
    begin_us: float
    end_us: float


def find_steps(trace: Trace, messages: Sequence[Message]) -> tuple[HostStep, ...]:
    """Steps in which gradients are sent.

    Raises
    ------
    ValueError
        Naming the trace, if it has no gradients, none of its AllReduces carries any, or no step is
        whole.
    """
    arrivals = _arrivals(trace, messages)
    sent = [a for a in arrivals if a.messages]
    if not sent:
        raise ValueError(
            f"{trace.name}: no AllReduce is called by a backward pass: not a job of "
            "DistributedDataParallel, or all its steps are under no_sync"
        )
    forwards = [event.start_us for event in trace.ops if event.name == _FORWARD]
    steps = []
    for window in _joined(_windows(trace, arrivals), sent):
        mine = [a for a in arrivals if window.begin_us <= a.ready_us < window.end_us]
        last_sent = max((a.ready_us for a in mine if a.messages), default=None)
        if last_sent is None:
            continue
        # With gradients accumulated over several passes, the last pass is the one that sends.
        before = bisect_right(forwards, last_sent)
        begin = forwards[before - 1] if before else window.begin_us
        mine = [a for a in mine if a.ready_us >= begin]
        carried = {id(message) for a in mine for message in a.messages}
        others = tuple(
            m
            for m in messages
            if window.begin_us <= m.call.start_us < window.end_us and id(m) not in carried
        )
        steps.append(
            HostStep(
                number=window.number,
                begin_us=window.begin_us,
                end_us=window.end_us,
                arrivals=tuple(mine),
                others=others,
            )
        )
    if not steps:
        raise ValueError(
            f"{trace.name}: no whole step: gradients are sent only outside of what ProfilerStep or "
            "Optimizer.step marks as steps; profile at least five steps"
        )
    return tuple(steps)


def _arrivals(trace: Trace, messages: Sequence[Message]) -> list[Arrival]:
    evaluations = outermost(e for e in trace.ops if e.name == _EVALUATE)
    inner = [e for e in trace.ops if e.name == ACCUMULATE]
    if not evaluations:
        evaluations = outermost(inner)
    if not evaluations:
        raise ValueError(
            f"{trace.name}: no {ACCUMULATE}: when gradients are ready is not in the trace; "
            "profile with ProfilerActivity.CPU as well"
        )
    around = Containers(evaluations)
    sizes: dict[int, int | None] = {}
    for event in inner:
        index = around.around(event)
        if index is not None:
            sizes.setdefault(index, tensor_bytes(event))
    called: dict[int, list[Message]] = {}
    for message in messages:
        index = None if message.is_integer else around.around(message.call)
        if index is not None:
            called.setdefault(index, []).append(message)
    return [
        Arrival(
            ready_us=min([e.end_us, *(m.call.start_us for m in called.get(index, []))]),
            end_us=e.end_us,
            num_bytes=sizes.get(index),
            messages=tuple(called.get(index, [])),
        )
        for index, e in enumerate(evaluations)
    ]


def _windows(trace: Trace, arrivals: Sequence[Arrival]) -> list[_Window]:
    marked = [(match, e) for e in trace.ops if (match := _STEP.match(e.name)) is not None]
    if marked:
        events = [event for _, event in marked]
        ends = [event.start_us for event in events[1:]] + [events[-1].end_us]
        return [
            _Window(number=int(match[1]), begin_us=event.start_us, end_us=end)
            for (match, event), end in zip(marked, ends, strict=True)
        ]
    cuts = [e.end_us for e in trace.ops if e.name.startswith(_OPTIMIZER)]
    if len(cuts) < 2:
        cuts = [event.start_us for event in trace.ops if event.name == _FORWARD]
    if len(cuts) < 2:
        cuts = _periods(arrivals, on_gpu(trace))
    if len(cuts) < 2:
        cuts = [trace.ops[0].start_us, max(event.end_us for event in trace.ops)]
    return [_Window(number=None, begin_us=begin, end_us=end) for begin, end in pairwise(cuts)]


def _periods(arrivals: Sequence[Arrival], own_clock: bool) -> list[float]:
    """Ends of the backward passes, if the messages repeat.

    With its last message, unless messages are on a clock of their own, the GPU's.
    """
    pattern: list[Hashable] = []
    ends: list[float] = []
    since = 0
    for arrival in arrivals:
        since += 1
        if arrival.messages:
            pattern.append((since, tuple(m.num_bytes for m in arrival.messages)))
            through = [m.call.end_us if own_clock else m.end_us for m in arrival.messages]
            ends.append(max([arrival.end_us, *through]))
            since = 0
    length = len(pattern)
    for period in range(1, length // 2 + 1):
        if all(pattern[i] == pattern[i + period] for i in range(length - period)):
            return ends[period - 1 :: period]
    return []


def _joined(windows: Sequence[_Window], sent: Sequence[Arrival]) -> list[_Window]:
    """Windows in which nothing is sent become the first part of the one that follows."""
    times = [arrival.ready_us for arrival in sent]
    joined: list[_Window] = []
    begin: float | None = None
    for window in windows:
        begin = window.begin_us if begin is None else begin
        if bisect_left(times, window.end_us) > bisect_left(times, begin):
            joined.append(replace(window, begin_us=begin))
            begin = None
    return joined
