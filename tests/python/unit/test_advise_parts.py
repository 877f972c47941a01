"""Parts of advice by themselves: gloo's traces, the line, contention, the choice of a cap."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kineto_traces import GpuJob

from disco_fuse.advise.caps import CapResult
from disco_fuse.advise.contention import contention_factor
from disco_fuse.advise.job import Job, job_of, load_job
from disco_fuse.advise.line import fit_line
from disco_fuse.advise.messages import item_bytes, num_elements
from disco_fuse.advise.rank import Flight, RankStep, RankTrace, Work, rank_of
from disco_fuse.advise.trace import Event, Trace
from disco_fuse.advise.verdict import Present, Verdict, spans

EVALUATE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def event(name: str, start: float, length: float, thread: str = "main", **args: object) -> Event:
    return Event(name=name, thread=thread, start_us=start, end_us=start + length, args={**args})


def gloo_step(number: int, late_us: float, copies: int = 2) -> list[Event]:
    """Two gradients of 4 and 8 kB, each its own message; gloo writes the ends down too late."""
    begin = 10_000.0 * number
    float_input = {"Input type": ["float"]}
    rows = [event(f"ProfilerStep#{number}", begin, 9_999.0)]
    for index, elements in enumerate((1000, 2000)):
        ready = begin + 2000 + 1000 * index
        shape = {"Input Dims": [[elements]], **float_input}
        rows += [
            event(EVALUATE, ready, 100.0),
            event("torch::autograd::AccumulateGrad", ready + 1, 2.0, **shape),
            event("c10d::allreduce_", ready + 50, 40.0),
            event("gloo:all_reduce", ready + 60, 500.0 + late_us, f"gloo{index}", **shape),
        ]
    for index in range(copies):
        copy = begin + 5000 + 100 * index
        rows.append(event("torch.distributed.ddp.reducer::copy_bucket_to_grad", copy, 30.0))
    return rows


def gloo_trace(late_us: float = 0.0, copies: int = 2) -> RankTrace:
    rows = [row for number in range(4) for row in gloo_step(number, late_us, copies)]
    ops = tuple(sorted(rows, key=lambda row: (row.start_us, -row.end_us)))
    return rank_of(Trace(name="t", rank=0, world_size=2, ops=ops, kernels=(), launches=()))


def test_a_trace_of_gloo() -> None:
    found = gloo_trace()
    assert not found.gpu
    assert found.gradient_bytes == (4000, 8000)
    assert found.sizes_known
    assert [step.number for step in found.steps] == [1, 2, 3]
    step = found.steps[0]
    # Ready is before the call, and the backward pass ends without the last call.
    assert step.ready_us == (12_050.0, 13_050.0)
    assert step.backward_us == 13_060.0
    assert step.copy_us == 60.0
    assert step.end_us == 20_000.0
    assert step.flights == (
        Flight(call_us=40.0, start_us=12_060.0, end_us=12_560.0, num_bytes=4000, num_ready=1),
        Flight(call_us=40.0, start_us=13_060.0, end_us=13_560.0, num_bytes=8000, num_ready=2),
    )


def test_the_map_of_unused_parameters_is_no_gradient() -> None:
    rows = [row for number in range(4) for row in gloo_step(number, 0.0)]
    for number in range(4):
        moment = 10_000.0 * number + 3092.0
        shape = {"Input Dims": [[2]], "Input type": ["int"]}
        rows.append(event("c10d::allreduce_", moment, 5.0))
        rows.append(event("gloo:all_reduce", moment + 600, 20.0, "gloo0", **shape))
    ops = tuple(sorted(rows, key=lambda row: (row.start_us, -row.end_us)))
    found = rank_of(Trace(name="t", rank=0, world_size=2, ops=ops, kernels=(), launches=()))
    for step in found.steps:
        assert [flight.num_bytes for flight in step.flights] == [4000, 8000]
        assert [(f.num_bytes, f.num_ready) for f in step.others] == [(8, 0)]


def test_messages_end_before_their_gradients_are_copied() -> None:
    ends = [flight.end_us for flight in gloo_trace(late_us=20_000.0).steps[0].flights]
    assert ends == [15_000.0, 15_100.0]
    ends = [flight.end_us for flight in gloo_trace(late_us=20_000.0, copies=0).steps[0].flights]
    assert ends == [20_000.0, 20_000.0]


def two_messages(*ends_us: tuple[float, float]) -> Job:
    """Messages of 1000 and 3000 bytes that start together, in as many steps as ends are given."""
    steps = []
    for number, ends in enumerate(ends_us):
        flights = tuple(
            Flight(call_us=0.0, start_us=100.0, end_us=100.0 + end, num_bytes=size, num_ready=1 + i)
            for i, (end, size) in enumerate(zip(ends, (1000, 3000), strict=True))
        )
        steps.append(
            RankStep(
                number=number,
                begin_us=0.0,
                backward_us=100.0,
                end_us=300.0,
                ready_us=(90.0, 100.0),
                flights=flights,
                others=(),
                copy_us=0.0,
                busy_us=300.0,
            )
        )
    trace = RankTrace(
        name="t",
        rank=0,
        world_size=2,
        gpu=False,
        gradient_bytes=(1000.0, 3000.0),
        sent_share=1.0,
        sizes_known=True,
        steps=tuple(steps),
        num_dropped=0,
        work=(),
    )
    return job_of([trace, replace(trace, name="u", rank=1)])


def test_messages_that_share_the_link() -> None:
    """10 us + 0.01 us a byte: 20 and 40 us alone; together the first has half for 40 us."""
    line = fit_line(two_messages((40.0, 60.0)))
    assert line is not None
    assert line.latency_us == pytest.approx(10.0)
    assert line.us_per_byte == pytest.approx(0.01)
    assert line.time_us(2000) == pytest.approx(30.0)
    assert line.is_narrow


def test_a_latency_below_zero_is_cut_off_and_the_rate_fitted_anew() -> None:
    line = fit_line(two_messages((10.0, 70.0)))  # 5 and 65 us
    assert line is not None
    assert line.latency_us == 0.0
    assert line.us_per_byte == pytest.approx(70 / 4000)


def test_the_messages_of_a_step_take_what_they_take_together() -> None:
    line = fit_line(two_messages((40.0, 60.0), (40.0, 80.0), (60.0, 70.0)))
    assert line is not None
    assert line.time_us(1000) + line.time_us(3000) == pytest.approx(70.0)
    assert line.latency_us > 0
    stated = fit_line(two_messages((40.0, 60.0), (40.0, 80.0), (60.0, 70.0)), latency_us=5.0)
    assert stated is not None
    assert (stated.latency_us, stated.us_per_byte) == (5.0, pytest.approx(60 / 4000))


def test_contention() -> None:
    beside = Flight(call_us=0.0, start_us=0.0, end_us=1000.0, num_bytes=1, num_ready=1)
    step = RankStep(
        number=1,
        begin_us=0.0,
        backward_us=1500.0,
        end_us=2000.0,
        ready_us=(10.0,),
        flights=(beside,),
        others=(),
        copy_us=0.0,
        busy_us=2000.0,
    )
    inside = [Work(kind="gemm", start_us=100.0 * i, end_us=100.0 * i + 60) for i in range(3)]
    outside = [Work(kind="gemm", start_us=t, end_us=t + 40) for t in (1100.0, 1200.0, 1300.0)]
    assert contention_factor([*inside, *outside], [step]) == pytest.approx(1.5)
    # Work of steps that do not count, other kinds and single measurements tell nothing.
    later = [Work(kind="gemm", start_us=t, end_us=t + 10) for t in (5100.0, 5200.0, 5300.0, 5400.0)]
    assert contention_factor([*inside, *outside, *later], [step]) == pytest.approx(1.5)
    assert contention_factor([*inside, *later], [step]) is None
    assert contention_factor([*inside, *outside[:2]], [step]) is None
    other = [Work(kind="softmax", start_us=w.start_us, end_us=w.end_us) for w in outside]
    assert contention_factor([*inside, *other], [step]) is None
    # Never faster beside a message.
    assert (
        contention_factor(
            [Work(kind="gemm", start_us=w.start_us, end_us=w.start_us + 9) for w in inside]
            + outside,
            [step],
        )
        == 1.0
    )


def cap(cap_mb: float, num_buckets: int, step_us: float) -> CapResult:
    return CapResult(
        cap_mb=cap_mb,
        num_buckets=num_buckets,
        step_us=step_us,
        small_first_us=step_us,
        first_cap_mb=cap_mb,
        list_us=step_us,
    )


def verdict(present_us: float, *caps_mb: float) -> Verdict:
    """The job has the buckets of these caps of the table, or such that no cap makes."""
    caps = (
        cap(0.1, 40, 1.200e5),
        cap(0.2, 20, 1.008e5),
        cap(1.0, 10, 1.000e5),
        cap(1.5, 8, 1.000e5),
        cap(2.0, 8, 1.000e5),
        cap(4.0, 5, 1.005e5),
        cap(8.0, 2, 1.100e5),
    )
    return Verdict(caps=caps, present=Present(name="now", caps_mb=caps_mb, step_us=present_us))


def test_no_cap_of_the_table_is_faster_than_the_advised_one() -> None:
    """Not even by less than predictions can tell; what a table shows as equal is equal."""
    slow = verdict(1.2e5, 0.1)
    assert not slow.keeps
    assert slow.best.cap_mb == 2.0
    assert slow.saved_us == pytest.approx(2e4)
    assert slow.level_mb == (0.2, 1.0, 1.5, 2.0, 4.0)


def test_caps_in_words() -> None:
    table = [0.5, 1.0, 1.5, 2.0, 4.0]
    assert spans([0.5], table) == "0.5"
    assert spans([0.5, 1.5, 2.0], table) == "0.5, 1.5 to 2"
    assert spans([2.0, 4.0], table) == "2 or more"
    assert spans([], table) == ""


def test_present_buckets_that_are_as_good_are_kept() -> None:
    for caps_mb, chosen in (((1.5, 2.0), 2.0), ((4.0,), 4.0), ((), 2.0)):
        level = verdict(1.005e5, *caps_mb)
        assert level.keeps
        assert level.best.cap_mb == chosen
        assert level.saved_us == pytest.approx(500.0)
    assert not verdict(1.008e5, 0.2).keeps
    assert verdict(1.008e5, 0.2).best.cap_mb == 2.0


def test_gradients_that_are_accumulated_first(tmp_path: Path) -> None:
    job = GpuJob(
        buckets=[[0, 1], [2]], elements=[300_000, 1000, 50_000], backward_us=[500, 100, 300]
    )
    plain = job.trace(0)
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    for row in [row for row in plain["traceEvents"] if row["name"].startswith("ProfilerStep")]:
        begin = row["ts"]
        micro = {"ph": "X", "cat": "cpu_op", "pid": 4242, "args": {}, "dur": 0.05}
        extra = [
            {**micro, "name": "DistributedDataParallel.forward", "tid": 100, "ts": begin + 0.1}
        ]
        extra += [
            {**micro, "name": EVALUATE, "tid": 200, "ts": begin + 0.2 + 0.1 * i} for i in range(3)
        ]
        plain["traceEvents"] += extra
    (tmp_path / "micro.json").write_text(json.dumps(plain))
    first, second = (load_job([str(tmp_path / name)]) for name in ("plain.json", "micro.json"))
    assert second.ready_us.tolist() == first.ready_us.tolist()
    assert second.gradient_bytes.tolist() == first.gradient_bytes.tolist()


def test_types_and_shapes() -> None:
    names = ("Float", "c10::BFloat16", "float", "c10::Half", "double", "float32")
    assert [item_bytes(name) for name in names] == [4, 2, 4, 2, 8, 4]
    assert item_bytes("long int") == 8
    assert item_bytes("bool") is None
    assert num_elements([2, 3]) == 6
    assert num_elements([[2, 3], [4], []]) == 11
    assert num_elements([]) == 1
    assert num_elements("x") is None
