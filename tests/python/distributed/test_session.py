"""Sessions of one rank: bookkeeping, errors and records; no MPI needed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from disco_fuse import _ffi, runtime
from disco_fuse.runtime import EventKind, Session, StepEvents
from disco_fuse.runtime.events import common_ns
from disco_fuse.runtime.session import allreduce_start, allreduce_wait


@pytest.fixture
def session() -> Session:
    return Session(runtime.loopback())


def floats(size: int = 4) -> np.ndarray:
    return np.arange(size, dtype=np.float32)


def test_average_of_one_rank_is_the_value(session: Session) -> None:
    one, other = floats(), floats(7)
    with session.step():
        allreduce_start(0, one, other)
        allreduce_wait(0, one, other)
    np.testing.assert_array_equal(one, floats())
    np.testing.assert_array_equal(other, floats(7))


def test_events_are_ordered_and_restart_with_each_step(session: Session) -> None:
    array = floats()
    for _ in range(2):
        with session.step():
            for bucket in (5, 2):
                allreduce_start(bucket, array)
                allreduce_wait(bucket, array)
    events = session.events()
    kinds = [EventKind(kind) for kind in events.rows[:, 0]]
    assert kinds == [EventKind.STEP, *[EventKind.START, EventKind.WAIT] * 2]
    assert list(events.rows[1:, 1]) == [5, 5, 2, 2]
    assert (np.diff(events.rows[:, 2]) >= 0).all()
    assert (events.rows[:, 3] >= events.rows[:, 2]).all()
    assert events.rows[0, 3] >= events.rows[1:, 3].max()
    assert events.overlap() == 0.0


def test_events_beyond_the_capacity_are_counted() -> None:
    session = Session(runtime.loopback(), max_events=3)
    array = floats()
    with session.step():
        for _ in range(4):
            allreduce_start(0, array)
            allreduce_wait(0, array)
    assert len(session.events().rows) == 3
    assert session.events().num_dropped == 6


def start_twice(array: np.ndarray) -> None:
    allreduce_start(1, array)
    allreduce_start(1, array)


def wait_for_other_memory(array: np.ndarray) -> None:
    allreduce_start(1, array)
    allreduce_wait(1, array.copy())


def wait_for_part(array: np.ndarray) -> None:
    allreduce_start(1, array)
    allreduce_wait(1, array[:2])


def wait_for_fewer(array: np.ndarray) -> None:
    allreduce_start(1, array, array.copy())
    allreduce_wait(1, array)


@pytest.mark.parametrize(
    ("misuse", "error", "message"),
    [
        (start_twice, ValueError, "bucket 1: started twice"),
        (lambda a: allreduce_wait(1, a), ValueError, "bucket 1: waited for but not started"),
        (wait_for_other_memory, ValueError, "bucket 1: waited for with other tensors"),
        (wait_for_part, ValueError, "bucket 1: waited for with other tensors"),
        (wait_for_fewer, ValueError, "bucket 1: waited for with other tensors"),
        (lambda a: allreduce_start(1, a), ValueError, "bucket 1: started but not waited for"),
        (lambda a: allreduce_start(-1, a), ValueError, "bucket -1: .* at least 0"),
        (lambda a: allreduce_start(1, a, a.astype(np.float64)), ValueError, "mixes dtypes"),
        (lambda a: allreduce_start(1, a.astype(np.int64)), TypeError, "int64; allowed: float16, "),
        (lambda a: allreduce_start(1, a[::2]), ValueError, "not contiguous"),
        (lambda _: allreduce_start(1), TypeError, "at least one tensor"),
    ],
)
def test_misuse_is_refused(
    session: Session,
    misuse: Callable[[np.ndarray], None],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message), session.step():
        misuse(floats())


def test_calls_outside_a_step_say_what_to_do(session: Session) -> None:
    array = floats()
    with session.step():
        pass
    for call in (allreduce_start, allreduce_wait):
        with pytest.raises(RuntimeError, match=r"needs a session.*with session\.step\(\)"):
            call(0, array)


def test_session_counts_for_its_thread_only(session: Session) -> None:
    errors: list[Exception] = []

    def call() -> None:
        try:
            allreduce_start(0, floats())
        except RuntimeError as error:
            errors.append(error)

    with session.step():
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert len(errors) == 1


def test_steps_nest_across_sessions() -> None:
    outer, inner = Session(runtime.loopback()), Session(runtime.loopback())
    array = floats()
    with outer.step():
        with inner.step():
            allreduce_start(0, array)
            allreduce_wait(0, array)
        allreduce_start(1, array)
        allreduce_wait(1, array)
    assert set(inner.events().of(EventKind.START)[:, 1]) == {0}
    assert set(outer.events().of(EventKind.START)[:, 1]) == {1}


def communication_threads() -> int:
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    return names.count("disco-comm")


def test_threads_end_with_their_communicator() -> None:
    gc.collect()
    before = communication_threads()
    communicator = runtime.loopback()
    session = Session(communicator)
    assert communication_threads() == before + 1
    communicator.close()
    communicator.close()
    assert communication_threads() == before
    with pytest.raises(RuntimeError, match="closed"):
        communicator.broadcast([floats()])
    other = runtime.loopback()
    del other
    gc.collect()
    assert communication_threads() == before
    assert session.communicator is communicator


def test_kernel_record_skips_what_is_no_kernel(session: Session) -> None:
    record = _ffi.function("runtime.record_kernel")
    with session.step():
        for name in ("vm.builtin.alloc_storage", "fused_add", "disco_fuse.runtime.allreduce_wait"):
            record(None, name, True, None)
            record(None, name, False, None)
    events = session.events()
    assert events.kernel_names == ("fused_add",)
    assert len(events.of(EventKind.KERNEL)) == 1


def events_of(rows: list[tuple[EventKind, int, int, int]]) -> StepEvents:
    return StepEvents(rows=np.array(rows, dtype=np.int64), kernel_names=(), num_dropped=0)


def test_overlap_is_allreduce_time_without_waits_and_inside_the_step() -> None:
    rows = [
        (EventKind.STEP, 0, 0, 100),
        (EventKind.ALLREDUCE, 0, 10, 50),
        (EventKind.WAIT, 0, 40, 60),
        (EventKind.ALLREDUCE, 1, 80, 120),
    ]
    assert events_of(rows).overlap() == pytest.approx((30 + 20) / 80)
    kernels = [(EventKind.KERNEL, 0, 5, 20), (EventKind.KERNEL, 0, 30, 35)]
    assert events_of(rows + kernels).overlap() == pytest.approx(15 / 80)


def test_common_time_of_intervals() -> None:
    a = np.array([[0, 10], [20, 30], [40, 50]])
    b = np.array([[5, 25], [28, 29], [50, 60]])
    assert common_ns(a, b) == common_ns(b, a) == 5 + 5 + 1
    assert common_ns(a, b[:0]) == 0


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan")])
def test_timeout_must_be_a_positive_number(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="allowed: a positive number"):
        runtime.mpi(timeout_s=timeout_s)


def test_arguments_are_checked() -> None:
    communicator = runtime.loopback()
    with pytest.raises(ValueError, match="root is 1; allowed: 0 to 0"):
        communicator.broadcast([floats()], 1)
    with pytest.raises(ValueError, match="max_events is 0"):
        Session(communicator, max_events=0)
    with pytest.raises(ValueError, match="repeats is 0"):
        runtime.measure_allreduce(communicator, [4], 0)
    with pytest.raises(ValueError, match="a size is 3 bytes"):
        runtime.measure_allreduce(communicator, [3], 1)


def test_one_rank_agrees_with_itself_and_keeps_its_exceptions() -> None:
    communicator = runtime.loopback()
    runtime.check_same(communicator, "x", "the plan")
    with pytest.raises(KeyError), runtime.abort_on_error(communicator):
        raise KeyError("x")
