"""A DDP job over gloo for the tests of advice, as programs under mpirun.

`advise_ranks.py FOLDER trace CAP` writes a trace of each rank,
`advise_ranks.py FOLDER measure ROUNDS CAP...` the step times of each cap.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

_PREFIX = "OMPI_COMM_WORLD_" if "OMPI_COMM_WORLD_RANK" in os.environ else "PMI_"
RANK, WORLD_SIZE = (int(os.environ[f"{_PREFIX}{name}"]) for name in ("RANK", "SIZE"))
NUM_TRACED = 7
# 10 MiB in 80 gradients of 40 layers, and 4 MiB of the last layer, whose gradient comes first.
WIDTH, NUM_LAYERS, NUM_CLASSES, BATCH = 256, 40, 4096, 128


class Job:
    """A model under DDP with one cap, its optimizer and its batch."""

    def __init__(self, cap_mb: float) -> None:
        torch.manual_seed(0)
        layers = [
            layer for _ in range(NUM_LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())
        ]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, NUM_CLASSES))
        self.model = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.inputs = torch.randn(BATCH, WIDTH)
        self.classes = torch.randint(NUM_CLASSES, (BATCH,))

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.inputs), self.classes)
        loss.backward()
        self.optimizer.step()


def trace(folder: Path, cap_mb: float) -> None:
    job = Job(cap_mb)
    steps = schedule(wait=2, warmup=1, active=NUM_TRACED)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=steps,
        record_shapes=True,
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"rank{RANK}.json.gz")),
    ) as profiler:
        for _ in range(3 + NUM_TRACED):
            job.step()
            profiler.step()


def measure(folder: Path, num_rounds: int, caps_mb: list[float]) -> None:
    """Steps of all caps in turn; the times of this rank."""
    jobs = {cap: Job(cap) for cap in caps_mb}
    times: dict[float, list[float]] = {cap: [] for cap in caps_mb}
    for _ in range(2):
        for job in jobs.values():
            job.step()
    for number in range(num_rounds):
        shift = number % len(caps_mb)
        for cap in caps_mb[shift:] + caps_mb[:shift]:
            torch.distributed.barrier()
            begin = time.perf_counter()
            jobs[cap].step()
            times[cap].append((time.perf_counter() - begin) * 1e6)
    text = json.dumps({str(cap): values for cap, values in times.items()})
    (folder / f"times{RANK}.json").write_text(text)


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    os.write(1, f"pid {os.getpid()}\n".encode())
    torch.set_num_threads(1)
    rendezvous = folder / f"rendezvous-{what}"
    torch.distributed.init_process_group(
        "gloo", init_method=rendezvous.as_uri(), rank=RANK, world_size=WORLD_SIZE
    )
    if what == "trace":
        trace(folder, float(sys.argv[3]))
    else:
        measure(folder, int(sys.argv[3]), [float(cap) for cap in sys.argv[4:]])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
