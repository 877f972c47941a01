"""The ranks' side of the distributed tests: ``mpirun -n N python ranks.py CASE``.

Every rank prints its process id, so that the test can check that none is left.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import mpi4py
import numpy as np

from disco_fuse import runtime
from disco_fuse.runtime import Communicator, EventKind, Session, StepEvents
from disco_fuse.runtime.session import allreduce_start, allreduce_wait

SIZES = (1, 7, 4095, 65536, 3_000_000)
DTYPES = (np.float32, np.float64, np.float16)


def say(communicator: Communicator, text: str) -> None:
    """Print one line that the other ranks' lines cannot cut in two."""
    os.write(1, f"rank {communicator.rank}: {text}\n".encode())


def say_end(communicator: Communicator) -> None:
    """Note when this rank is about to end the run, so that starting it is not counted."""
    say(communicator, f"ends at {time.time()}")


def values_of(rank: int, size: int, dtype: type, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, rank]).standard_normal(size).astype(dtype)


def check_average(communicator: Communicator, got: np.ndarray, seed: int) -> None:
    ranks = range(communicator.world_size)
    inputs = [values_of(r, got.size, got.dtype.type, seed).astype(np.float64) for r in ranks]
    bound = 4 * np.finfo(got.dtype).eps * np.abs(inputs).max()
    np.testing.assert_allclose(got, np.mean(inputs, axis=0), rtol=0, atol=bound)


def averages(communicator: Communicator) -> None:
    session = Session(communicator)
    for dtype in DTYPES:
        for seed, size in enumerate(SIZES):
            array = values_of(communicator.rank, size, dtype, seed)
            with session.step():
                allreduce_start(0, array)
                allreduce_wait(0, array)
            check_average(communicator, array, seed)
            digest = hashlib.sha256(array.tobytes()).hexdigest()
            say(communicator, f"bits {dtype.__name__} {size} {digest}")


def many_buckets(communicator: Communicator) -> None:
    """Buckets of one and several tensors in flight, ranks out of step, waits out of order."""
    session = Session(communicator)
    shapes = np.random.default_rng(5).integers(1, 60_000, size=(30, 3))
    delays = np.random.default_rng(100 + communicator.rank)
    for step in range(3):
        buckets = [
            [
                values_of(communicator.rank, size, np.float32, 1000 * step + 10 * b + i)
                for i, size in enumerate(sizes[: 1 + b % 3])
            ]
            for b, sizes in enumerate(shapes)
        ]
        with session.step():
            for index, tensors in enumerate(buckets):
                time.sleep(delays.uniform(0, 2e-3))
                allreduce_start(index, *tensors)
            for index in reversed(range(len(buckets))):
                allreduce_wait(index, *buckets[index])
        for b, tensors in enumerate(buckets):
            for i, tensor in enumerate(tensors):
                check_average(communicator, tensor, 1000 * step + 10 * b + i)
    assert len(session.events().of(EventKind.ALLREDUCE)) == len(buckets)
    say(communicator, "done")


def broadcast(communicator: Communicator) -> None:
    for root in range(communicator.world_size):
        arrays = [
            values_of(communicator.rank, size, np.float32).reshape(-1, 1) for size in SIZES
        ] + [np.full((3, 2), communicator.rank, dtype=np.int64)]
        communicator.broadcast(arrays, root)
        for size, array in zip(SIZES, arrays, strict=False):
            np.testing.assert_array_equal(array[:, 0], values_of(root, size, np.float32))
        assert (arrays[-1] == root).all()
    try:
        communicator.broadcast([np.ones(3 + communicator.rank % 2, np.float32)])
    except ValueError as error:
        say(communicator, f"refused: {error}")


def different_plans(communicator: Communicator) -> None:
    runtime.check_same(communicator, "a" * 8, "the plan")
    try:
        runtime.check_same(communicator, f"hash{communicator.rank % 2}", "the plan")
    except ValueError as error:
        say(communicator, f"refused: {error}")


def measured(communicator: Communicator) -> None:
    result = runtime.measure_allreduce(communicator, [4096, 1 << 20], 5)
    say(communicator, f"measured {result}")


def measured_4mb(communicator: Communicator) -> None:
    say(communicator, f"measured {runtime.measure_allreduce(communicator, [4 << 20], 3)}")


def measured_beside_compute(communicator: Communicator) -> None:
    costs = runtime.measure_beside_compute(communicator, [4096, 4 << 20], 5)
    rows = [(cost.num_bytes, cost.flight_us, cost.stolen_us) for cost in costs]
    say(communicator, f"measured {rows}")


def overlapped(communicator: Communicator) -> None:
    """The main thread computes until the bucket must have arrived."""
    session = Session(communicator)
    array = values_of(communicator.rank, 50_000, np.float32)
    communicator.barrier()
    with session.step():
        allreduce_start(0, array)
        deadline = time.perf_counter() + 0.3
        while time.perf_counter() < deadline:
            pass
        allreduce_wait(0, array)
    events: StepEvents = session.events()
    assert events.overlap() > 0.95, events
    assert events.total_us(EventKind.STEP) > 0.3e6
    say(communicator, "done")


def killed_in_compute(communicator: Communicator) -> None:
    session = Session(communicator)
    array = np.ones(1_000_000, np.float32)
    with session.step():
        if communicator.rank == 1:
            say_end(communicator)
            os.kill(os.getpid(), signal.SIGKILL)
        allreduce_start(0, array)
        allreduce_wait(0, array)


def killed_in_allreduce(communicator: Communicator) -> None:
    session = Session(communicator)
    array = np.ones(30_000_000, np.float32)
    with session.step():
        communicator.barrier()
        allreduce_start(0, array)
        if communicator.rank == 1:
            time.sleep(0.005)
            say_end(communicator)
            os.kill(os.getpid(), signal.SIGKILL)
        allreduce_wait(0, array)
    say(communicator, "must not get here")


def raises(communicator: Communicator) -> None:
    session = Session(communicator)
    array = np.ones(1_000_000, np.float32)
    with session.step():
        if communicator.rank == 1:
            say_end(communicator)
            raise ZeroDivisionError("the batch was empty")
        allreduce_start(0, array)
        allreduce_wait(0, array)


def peer_never_comes(communicator: Communicator) -> None:
    """Run with a short timeout: rank 0 gives up, later calls fail at once with the same reason."""
    from mpi4py import MPI

    if communicator.rank == 0:
        session = Session(communicator)
        for bucket in (7, 8):
            array = np.ones(100_000, np.float32)
            try:
                with session.step():
                    allreduce_start(bucket, array)
                    allreduce_wait(bucket, array)
            except RuntimeError as error:
                say(communicator, f"bucket {bucket} failed: {error}")
    MPI.COMM_WORLD.Barrier()  # the communicator's own barrier has the short timeout too


def interrupted(communicator: Communicator) -> None:
    """Ctrl-C reaches a main thread that waits for a peer."""

    def on_alarm(number: int, frame: object) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    if communicator.rank == 0:
        signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        array = np.ones(100_000, np.float32)
        start = time.monotonic()
        try:
            with Session(communicator).step():
                allreduce_start(0, array)
                allreduce_wait(0, array)
        except KeyboardInterrupt:
            say(communicator, f"interrupted after {time.monotonic() - start:.1f} s")
    communicator.close()


def leaves_early(communicator: Communicator) -> None:
    """A bucket in flight that its peer never joins must not hold up the end of the process."""
    if communicator.rank == 0:
        session = Session(communicator)
        array = np.ones(100_000, np.float32)
        with session.step():
            allreduce_start(0, array)
            say_end(communicator)
            sys.exit(0)


def hangs(communicator: Communicator) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(communicator, "hangs")
    threading.Event().wait()


CASES: dict[str, Callable[[Communicator], None]] = {
    case.__name__: case
    for case in (
        averages,
        many_buckets,
        broadcast,
        different_plans,
        measured,
        measured_4mb,
        measured_beside_compute,
        overlapped,
        killed_in_compute,
        killed_in_allreduce,
        raises,
        peer_never_comes,
        interrupted,
        leaves_early,
        hangs,
    )
}


def thread_level() -> None:
    mpi4py.rc.thread_level = "funneled"
    try:
        runtime.mpi()
    except RuntimeError as error:
        os.write(1, f"refused: {error}\n".encode())


def main() -> None:
    os.write(1, f"pid {os.getpid()}\n".encode())
    if sys.argv[1] == "thread_level":
        thread_level()
        return
    timeout_s = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    # A letter for the host of every rank; without, MPI says which ranks share one.
    hosts = sys.argv[3] if len(sys.argv) > 3 else None
    communicator = runtime.mpi(timeout_s=timeout_s, hosts=hosts)
    with runtime.abort_on_error(communicator):
        CASES[sys.argv[1]](communicator)


if __name__ == "__main__":
    main()
