"""A made-up DDP job on GPUs, and the traces that PyTorch's profiler would export of its ranks.

The job is computed in steps of a microsecond, on purpose in another way than advice replays it:

    stream 7    | forward | gradient 0 | gradient 1 | ... |  wait  | optimizer |
    stream 20              [ waits for other ranks | AllReduce ]

Compute is kernels of equal work, 50 us each. The host runs ahead of its GPU. Names, categories and
arguments are those of real exports: "new" of torch 2.x, "old" of torch 1.9 (a bare list, other
categories, no sizes beside the messages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_DDP_STREAM = 20
_AHEAD_US = 2000.0
KERNEL_US = 50


@dataclass(frozen=True, kw_only=True)
class GpuJob:
    """What the job does; times in microseconds, gradients in order of arrival."""

    buckets: Sequence[Sequence[int]]
    elements: Sequence[int]  # of each gradient, float32
    backward_us: Sequence[int]  # before each gradient, whole kernels
    forward_us: int = 3000
    optimizer_us: int = 1000
    latency_us: float = 100.0
    us_per_byte: float = 1e-3
    contention: float = 1.0
    world_size: int = 2
    late_us: Sequence[int] = (0, 0)  # longer forward pass of each rank
    num_steps: int = 6
    message_elements: float = 1.0  # sent elements over those of the gradients
    clocks_us: Sequence[float] = field(default=(0.0, 5e6))  # what each rank's clock is ahead

    def times(self) -> list[dict[str, Any]]:
        """Per rank: starts and ends of its kernels and messages in one step, and its length."""
        return _run(self)

    def step_us(self, buckets: Sequence[Sequence[int]]) -> float:
        """Mean length of a step with other buckets."""
        lengths = [rank["end"] for rank in replace(self, buckets=buckets).times()]
        return sum(lengths) / len(lengths)

    def trace(self, rank: int, style: str = "new", **options: Any) -> Any:
        """What the rank's profiler would export, as JSON values; options: see `_Writer`."""
        return _Writer(self, rank, style, **options).export()


def _run(job: GpuJob) -> list[dict[str, Any]]:
    """Advance all ranks by a microsecond at a time."""
    firsts = [(job.forward_us + late) // KERNEL_US for late in job.late_us[: job.world_size]]
    counts = [sum(job.backward_us) // KERNEL_US + first for first in firsts]
    needed = [
        [first + sum(job.backward_us[: max(bucket) + 1]) // KERNEL_US for bucket in job.buckets]
        for first in firsts
    ]
    kernels: list[list[float]] = [[] for _ in firsts]  # ends
    left = [float(KERNEL_US) for _ in firsts]
    called: list[list[float]] = [[] for _ in firsts]
    through: list[float] = []
    now, flying = 0.0, None
    while len(through) < len(job.buckets) or [len(ends) for ends in kernels] != counts:
        if flying is not None and now >= flying:
            through.append(flying)
            flying = None
        number = len(through)
        if flying is None and number < min(map(len, called)):
            sent = sum(job.elements[g] for g in job.buckets[number]) * 4 * job.message_elements
            flying = now + job.latency_us + job.us_per_byte * sent
        now += 1.0
        for rank, ends in enumerate(kernels):
            if len(ends) == counts[rank]:
                continue
            left[rank] -= 1.0 if flying is None else 1.0 / job.contention
            if left[rank] <= 1e-9:
                left[rank] += KERNEL_US
                ends.append(now)
                ready = sum(len(ends) >= need for need in needed[rank])
                called[rank] += [now] * (ready - len(called[rank]))
    return [
        {
            "first": firsts[rank],
            "ends": kernels[rank],
            "called": called[rank],
            "through": through,
            "optimizer": max(kernels[rank][-1], through[-1]),
            "end": max(kernels[rank][-1], through[-1]) + job.optimizer_us,
        }
        for rank in range(job.world_size)
    ]


class _Writer:
    """Writes the events of one rank.

    `shapes`: as with record_shapes=True; `marks`: annotations to write; `host`: operators;
    `streams`: compute streams; `side_message`: an AllReduce of 4 bytes that carries no gradient;
    `gpu_ahead_us`: what the GPU's clock is ahead of the host's.
    """

    def __init__(
        self,
        job: GpuJob,
        rank: int,
        style: str,
        *,
        shapes: bool = True,
        marks: Sequence[str] = ("ProfilerStep", "DistributedDataParallel", "Optimizer"),
        host: bool = True,
        streams: int = 1,
        side_message: bool = False,
        gpu_ahead_us: float = 0.0,
    ) -> None:
        self.job, self.rank, self.old = job, rank, style == "old"
        self.shapes, self.marks, self.host, self.streams = shapes, tuple(marks), host, streams
        self.side_message, self.gpu_ahead_us = side_message, gpu_ahead_us
        self.events: list[dict[str, Any]] = []
        self.number = 0

    def export(self) -> Any:
        ranks = self.job.times()
        times, gap = ranks[self.rank], max(rank["end"] for rank in ranks)
        for step in range(self.job.num_steps):
            self._step(step + 3, self.job.clocks_us[self.rank] + 1e6 + step * gap, times)
        if self.old:
            return self.events
        about = {"backend": "nccl", "rank": self.rank, "world_size": self.job.world_size}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            "distributedInfo": about,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1723456789000000000,
            "traceEvents": self.events,
        }

    def _step(self, number: int, begin: float, times: dict[str, Any]) -> None:
        host = begin - _AHEAD_US
        self._mark(f"ProfilerStep#{number}", host, times["end"] - 2.0)
        self._mark("DistributedDataParallel.forward", host + 1, 20.0)
        if self.side_message:
            self._message(host + 10, begin + 50, begin + 50 + self.job.latency_us, 1, thread=100)
        starts = [begin + end for end in (0.0, *times["ends"])]
        moment = host + 30
        for kernel in range(times["first"]):
            self._kernel(100, moment, starts[kernel], starts[kernel + 1], kernel)
            moment += 1
        kernel = times["first"]
        for gradient, work_us in enumerate(self.job.backward_us):
            for _ in range(work_us // KERNEL_US):
                self._kernel(200, moment, starts[kernel], starts[kernel + 1], kernel)
                moment, kernel = moment + 1, kernel + 1
            moment = self._gradient(gradient, moment + 1, begin, times)
        self._mark("Optimizer.step#SGD.step", moment + 5, 10.0)
        update = begin + times["optimizer"]
        self._kernel(100, moment + 8, update, update + self.job.optimizer_us, 0)

    def _mark(self, name: str, start: float, length: float) -> None:
        if name.startswith(self.marks):
            self._host("user_annotation", name, start, length)

    def _gradient(self, gradient: int, moment: float, begin: float, times: dict[str, Any]) -> float:
        closed = [b for b, m in enumerate(self.job.buckets) if max(m) == gradient]
        length = 2.0 + 4.0 * len(closed)
        name = "torch::autograd::AccumulateGrad"
        self._host("cpu_op", f"autograd::engine::evaluate_function: {name}", moment, length, 200)
        self._host("cpu_op", name, moment + 0.5, 0.5, 200, self._dims(self.job.elements[gradient]))
        for bucket in closed:
            elements = sum(self.job.elements[g] for g in self.job.buckets[bucket])
            before = times["through"][bucket - 1] if bucket else 0.0
            start = max(times["called"][bucket], before)
            self._message(
                moment + 2,
                begin + start,
                begin + times["through"][bucket],
                int(elements * self.job.message_elements),
            )
        return moment + length + 1

    def _message(
        self, moment: float, start: float, end: float, elements: int, thread: int = 200
    ) -> None:
        sizes = {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "Float"}
        sizes |= {"Out msg nelems": elements, "Group size": self.job.world_size}
        if self.old:
            name, known = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", {}
        else:
            name, known = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", sizes
            self._host("cpu_op", "c10d::allreduce_", moment, 3.0, thread)
            self._host("cpu_op", "record_param_comms", moment + 0.2, 2.6, thread, known)
        self._host("cpu_op", "nccl:all_reduce", moment + 0.4, 2.0, thread, self._dims(elements))
        self._launch(name, moment + 0.6, start, end, _DDP_STREAM, thread, known)

    def _kernel(self, thread: int, moment: float, start: float, end: float, number: int) -> None:
        stream = 7 + number % self.streams
        self._launch("gemm_kernel(float*)", moment, start, end, stream, thread, {})

    def _launch(
        self,
        name: str,
        moment: float,
        start: float,
        end: float,
        stream: int,
        thread: int,
        args: dict[str, Any],
    ) -> None:
        self.number += 1
        runtime, kernel = ("Runtime", "Kernel") if self.old else ("cuda_runtime", "kernel")
        shared = {"correlation": self.number}
        self._host(runtime, "cudaLaunchKernel", moment, 0.3, thread, shared)
        about = {"device": 0, "stream": stream, "grid": [64, 1, 1], "block": [256, 1, 1]}
        lane = f"stream {stream}" if self.old else stream
        event = {"ph": "X", "cat": kernel, "name": name, "pid": 0, "tid": lane}
        self.events.append(
            {
                **event,
                "ts": start + self.gpu_ahead_us,
                "dur": end - start,
                "args": {**about, **shared, **args},
            }
        )

    def _host(
        self,
        category: str,
        name: str,
        start: float,
        length: float,
        thread: int = 100,
        args: dict[str, Any] | None = None,
    ) -> None:
        if not self.host and category in ("cpu_op", "user_annotation"):
            return
        if self.old and category in ("cpu_op", "user_annotation"):
            category = "Operator"
        event = {"ph": "X", "cat": category, "name": name, "pid": 4242, "tid": thread}
        self.events.append({**event, "ts": start, "dur": length, "args": args or {}})

    def _dims(self, elements: int) -> dict[str, Any]:
        if not self.shapes:
            return {}
        return {"Input Dims": [[elements]], "Input type": ["float"]}
