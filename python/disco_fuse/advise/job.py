"""All ranks of a job on one clock.

Each trace has a clock of its own, even on one host. An AllReduce ends on all ranks at nearly the
same time, so in every step a rank's clock is moved by the median difference of these ends. A rank
that was late is then one whose messages start late, and a message is really under way from its
latest start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from disco_fuse.advise.contention import contention_factor
from disco_fuse.advise.rank import RankStep, RankTrace, read_rank

Values = npt.NDArray[np.float64]

# Ends of one AllReduce that differ by more than this share of a step are ends of different ones.
_MOST_DISAGREEMENT = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """Steps of a job; S steps, R traces, n gradients, m messages a step.

    All times are microseconds from the begin of the rank that begins the step first.

    Attributes
    ----------
    names : tuple of str
        Of the traces.
    ranks : tuple of int or None
    world_size : int, optional
    gpu : bool
    gradient_bytes : float[n]
        In order of arrival.
    sent_share : float
        Bytes sent over bytes of gradients.
    sizes_known : bool
        Whether the sizes of gradients are known, not only those of buckets.
    bucket_bytes : float[m]
    num_ready : int[m]
        Gradients that had arrived when the message was called.
    begin_us, backward_us, end_us, copy_us, busy_us : float[S, R]
    ready_us : float[S, R, n]
    start_us, finish_us, call_us : float[S, R, m]
    others : tuple of (bytes, us)
        AllReduces that carry no gradients.
    num_dropped : int
        Steps of the traces that were left out.
    contentions : tuple of float
        Factors by which compute is slower beside a message, of the ranks whose traces tell.
    """

    names: tuple[str, ...]
    ranks: tuple[int | None, ...]
    world_size: int | None
    gpu: bool
    gradient_bytes: Values
    sent_share: float
    sizes_known: bool
    bucket_bytes: Values
    num_ready: npt.NDArray[np.int64]
    begin_us: Values
    backward_us: Values
    end_us: Values
    copy_us: Values
    busy_us: Values
    ready_us: Values
    start_us: Values
    finish_us: Values
    call_us: Values
    others: tuple[tuple[int, float], ...]
    num_dropped: int
    contentions: tuple[float, ...]

    @property
    def contention(self) -> float | None:
        """The median of the ranks that tell; None if none does."""
        return float(np.median(self.contentions)) if self.contentions else None

    @property
    def num_steps(self) -> int:
        """Steps that count."""
        return int(self.begin_us.shape[0])

    @property
    def step_us(self) -> float:
        """Step time: the median over steps of the mean over ranks."""
        return float(np.median((self.end_us - self.begin_us).mean(axis=1)))

    def flights(self) -> tuple[Values, Values]:
        """When each message was under way on all ranks: start and end, float[S, m]."""
        return self.start_us.max(axis=1), np.median(self.finish_us, axis=1)

    def exposed_us(self) -> Values:
        """By how much the last message outlives the backward pass, float[S, R]."""
        last = self.finish_us.max(axis=2)
        exposed: Values = np.maximum(last - np.maximum(self.backward_us, self.begin_us), 0.0)
        return exposed

    def waited_us(self) -> Values:
        """What messages of a rank waited for later ranks, per step, float[S, R]."""
        latest = self.start_us.max(axis=1, keepdims=True)
        waited: Values = (latest - self.start_us).sum(axis=2)
        return waited


def load_job(paths: Sequence[str], on_file: Callable[[str], None] = lambda _: None) -> Job:
    """Read the traces of a job, one file per rank; any number of its ranks.

    Parameters
    ----------
    on_file : callable
        Called with the path after each file.

    Raises
    ------
    ValueError
        A file is no usable trace, or they are not of the same job.
    """
    traces = []
    for path in paths:
        traces.append(read_rank(path))
        on_file(path)
    return job_of(traces)


def job_of(traces: Sequence[RankTrace]) -> Job:
    """Put ranks on one clock; see :func:`load_job`."""
    if not traces:
        raise ValueError("no traces; at least one is needed")
    _check_same_job(traces)
    steps = _common_steps(traces)
    first = traces[0]
    finish = _stack(steps, lambda step: [flight.end_us for flight in step.flights])
    offset = np.median(finish - finish[:, :1, :], axis=2)
    scalars = {
        name: _stack(steps, lambda step, name=name: getattr(step, name)) - offset  # type: ignore[misc]
        for name in ("begin_us", "backward_us", "end_us")
    }
    zero = scalars["begin_us"].min(axis=1, keepdims=True)
    shift = (offset + zero)[:, :, None]
    job = Job(
        names=tuple(trace.name for trace in traces),
        ranks=tuple(trace.rank for trace in traces),
        world_size=first.world_size,
        gpu=first.gpu,
        gradient_bytes=np.array(first.gradient_bytes),
        sent_share=first.sent_share,
        sizes_known=first.sizes_known,
        bucket_bytes=np.array([f.num_bytes for f in first.steps[0].flights], np.float64),
        num_ready=np.array([f.num_ready for f in first.steps[0].flights]),
        **{name: values - zero for name, values in scalars.items()},
        copy_us=_stack(steps, lambda step: step.copy_us),
        busy_us=_stack(steps, lambda step: step.busy_us),
        ready_us=_stack(steps, lambda step: step.ready_us) - shift,
        start_us=_stack(steps, lambda step: [flight.start_us for flight in step.flights]) - shift,
        finish_us=finish - shift,
        call_us=_stack(steps, lambda step: [flight.call_us for flight in step.flights]),
        others=_others(steps),
        num_dropped=sum(trace.num_dropped for trace in traces),
        contentions=_contentions(traces),
    )
    _check_ends(job)
    return job


def _stack(steps: Sequence[Sequence[RankStep]], value: Callable[[RankStep], object]) -> Values:
    return np.array([[value(step) for step in row] for row in steps], np.float64)


def _check_same_job(traces: Sequence[RankTrace]) -> None:
    first = traces[0]
    known = [trace.rank for trace in traces if trace.rank is not None]
    for rank in known:
        if known.count(rank) > 1:
            same = [trace.name for trace in traces if trace.rank == rank]
            raise ValueError(f"{' and '.join(same)}: both are rank {rank}; one file per rank")
    for trace in traces[1:]:
        for what, a, b in (
            ("world sizes", first.world_size, trace.world_size),
            ("devices", "GPU" if first.gpu else "CPU", "GPU" if trace.gpu else "CPU"),
            ("numbers of gradients", len(first.gradient_bytes), len(trace.gradient_bytes)),
            ("messages, in bytes,", _bytes_of(first), _bytes_of(trace)),
        ):
            if a != b:
                raise ValueError(
                    f"{first.name} and {trace.name} are not of the same job: their {what} are "
                    f"{a} and {b}"
                )


def _bytes_of(trace: RankTrace) -> list[int]:
    return [flight.num_bytes for flight in trace.steps[0].flights]


def _common_steps(traces: Sequence[RankTrace]) -> list[list[RankStep]]:
    """Per step that all traces have, the ranks' parts; by number, or else in order."""
    numbered = [{step.number: step for step in trace.steps} for trace in traces]
    if any(None in steps for steps in numbered):
        return [list(row) for row in zip(*(trace.steps for trace in traces), strict=False)]
    common = set.intersection(*(set(steps) for steps in numbered))
    if not common:
        texts = [f"{t.name} has {[s.number for s in t.steps]}" for t in traces]
        raise ValueError(f"the traces have no step in common: {'; '.join(texts)}")
    in_order = [step.number for step in traces[0].steps if step.number in common]
    return [[steps[number] for steps in numbered] for number in in_order]


def _check_ends(job: Job) -> None:
    apart = np.median(np.abs(job.finish_us - job.finish_us[:, :1, :]), axis=(0, 2))
    worst = int(np.argmax(apart))
    if apart[worst] > _MOST_DISAGREEMENT * job.step_us:
        raise ValueError(
            f"{job.names[0]} and {job.names[worst]} are not of the same run: their AllReduces end "
            f"{apart[worst]:.0f} us apart in steps of {job.step_us:.0f} us, on any common clock"
        )


def _others(steps: Sequence[Sequence[RankStep]]) -> tuple[tuple[int, float], ...]:
    """Bytes and time of each; the rank that waits least says what the message itself takes."""
    found = []
    for row in steps:
        if len({tuple(f.num_bytes for f in step.others) for step in row}) > 1:
            continue
        for same in zip(*(step.others for step in row), strict=True):
            found.append((same[0].num_bytes, min(f.end_us - f.start_us for f in same)))
    return tuple(found)


def _contentions(traces: Sequence[RankTrace]) -> tuple[float, ...]:
    found = (contention_factor(trace.work, trace.steps) for trace in traces)
    return tuple(factor for factor in found if factor is not None)
