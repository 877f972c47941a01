"""Advice from GPU traces of a made-up job, whose true figures are known."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kineto_traces import GpuJob

from disco_fuse.advise import Advice, Job, advise, load_job
from disco_fuse.advise.caps import candidate_caps
from disco_fuse.advise.findings import in_arrival_order
from disco_fuse.advise.replay import Replay
from disco_fuse.tensor_fusion import MIB, ddp_partition

# A big gradient first, then small and middle ones: 12.9 MiB in all.
ELEMENTS = (1_500_000, 256, 400_000, 256, 400_000, 30_000, 30_000, 800_000, 200_000, 1000)
BACKWARD_US = (700, 100, 900, 150, 900, 300, 300, 1200, 600, 200)
SIZES = [4 * elements for elements in ELEMENTS]


def job(cap_mb: float = 2.0, **changes: Any) -> GpuJob:
    buckets = ddp_partition(SIZES, [int(cap_mb * MIB)])
    made = GpuJob(buckets=buckets, elements=ELEMENTS, backward_us=BACKWARD_US)
    return replace(made, **changes)


def load(folder: Path, made: GpuJob, ranks: Sequence[int] = (0, 1), **options: Any) -> Job:
    paths = []
    for rank in ranks:
        paths.append(str(folder / f"rank{rank}.json"))
        Path(paths[-1]).write_text(json.dumps(made.trace(rank, **options)))
    return load_job(paths)


def predicted(job: Job, advice: Advice, buckets: Sequence[Sequence[int]]) -> float:
    assert advice.line is not None
    return Replay.of(job, advice.line, advice.contention or 1.0).step_us(buckets)


@pytest.mark.parametrize("contention", [1.0, 1.4])
@pytest.mark.parametrize("late_us", [(0, 0), (0, 900)])
def test_figures_and_predictions(tmp_path: Path, contention: float, late_us: Any) -> None:
    made = job(contention=contention, late_us=late_us)
    loaded = load(tmp_path, made)
    advice = advise(loaded)
    line = advice.line
    assert line is not None
    assert line.latency_us == pytest.approx(100.0, abs=3.0)
    assert line.us_per_byte == pytest.approx(1e-3, rel=0.01)
    assert advice.contention == pytest.approx(contention, rel=0.02)
    truth = made.times()
    true_step = np.mean([rank["end"] for rank in truth])
    exposed = np.mean([rank["optimizer"] - rank["ends"][-1] for rank in truth])
    assert advice.measured["step_us"] == pytest.approx(true_step, rel=1e-3)
    assert advice.measured["exposed_us"] == pytest.approx(exposed, abs=2.0)
    assert advice.bound_us <= min(cap.list_us for cap in advice.caps)
    for cap in candidate_caps(sum(SIZES)):
        buckets = ddp_partition(SIZES, [int(cap * MIB)])
        assert predicted(loaded, advice, buckets) == pytest.approx(made.step_us(buckets), rel=0.01)
    first, second = advice.ranks
    late = second["compute_us"] - first["compute_us"]
    assert late == pytest.approx(truth[1]["ends"][-1] - truth[0]["ends"][-1], abs=2.0)
    assert (first["waited_us"] > 500) == (late_us[1] > 0)


def summary(advice: Advice) -> list[float]:
    assert advice.line is not None
    times = [cap.step_us for cap in advice.caps]
    return [
        advice.measured["step_us"],
        advice.measured["exposed_us"],
        advice.line.latency_us,
        *times,
    ]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Advice:
    return advise(load(tmp_path_factory.mktemp("usual"), job(contention=1.4)))


@pytest.mark.parametrize(
    "options",
    [
        {"style": "old"},
        {"streams": 3},
        {"gpu_ahead_us": 1e7},
        {"gpu_ahead_us": -1e7},
        {"marks": ("DistributedDataParallel", "Optimizer")},
        {"marks": ("DistributedDataParallel",)},
        {"marks": ()},
        {"style": "old", "marks": ()},
    ],
    ids=str,
)
def test_the_same_job_written_otherwise(
    tmp_path: Path, usual: Advice, options: dict[str, Any]
) -> None:
    advice = advise(load(tmp_path, job(contention=1.4), **options))
    assert summary(advice) == pytest.approx(summary(usual), rel=0.02)


def test_what_the_replay_of_the_own_buckets_says(usual: Advice) -> None:
    assert usual.verdict is not None
    assert usual.verdict.present.step_us == pytest.approx(usual.measured["step_us"], rel=0.01)
    assert usual.notes == ()
    assert usual.bucket_mb == pytest.approx(
        [sum(SIZES[g] for g in bucket) / MIB for bucket in job().buckets]
    )


def test_one_rank(tmp_path: Path, usual: Advice) -> None:
    advice = advise(load(tmp_path, job(contention=1.4), ranks=[1]))
    assert summary(advice) == pytest.approx(summary(usual), rel=0.02)
    assert advice.notes[0] == "1 of 2 ranks: how late the others are is not known"
    assert advice.notes[1].startswith("one rank: its AllReduces include waiting")


def test_gradients_of_unknown_size_share_their_bucket(tmp_path: Path) -> None:
    loaded = load(tmp_path, job(), shapes=False)
    assert not loaded.sizes_known
    assert loaded.gradient_bytes.sum() == sum(SIZES)
    second = job().buckets[1]
    share = sum(SIZES[g] for g in second) / len(second)
    assert loaded.gradient_bytes[second].tolist() == pytest.approx([share] * len(second))
    assert any(
        note.startswith("sizes of gradients are not in the trace") for note in advise(loaded).notes
    )


def test_compressed_gradients(tmp_path: Path) -> None:
    made = job(message_elements=0.5)
    loaded = load(tmp_path, made)
    assert loaded.sent_share == pytest.approx(0.5)
    advice = advise(loaded)
    assert any("sends 50% of the gradients' bytes" in note for note in advice.notes)
    single = [list(range(len(SIZES)))]
    assert predicted(loaded, advice, single) == pytest.approx(made.step_us(single), rel=0.01)


def test_the_first_step_and_other_buckets_are_left_out(tmp_path: Path) -> None:
    rows = job().trace(0)["traceEvents"]
    # The first two steps have DDP's buckets before the rebuild: all gradients in one message.
    early = [r for r in rows if "In msg nelems" in r["args"] and r["ts"] < 1e6 + 2 * 13000]
    for row in early:
        row["args"]["In msg nelems"] += 1
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    loaded = load_job([str(tmp_path / "trace.json")])
    assert loaded.num_dropped >= 2
    assert loaded.num_steps + loaded.num_dropped == 6
    assert loaded.bucket_bytes.sum() == sum(SIZES)


def test_one_step_is_enough_but_noted(tmp_path: Path, usual: Advice) -> None:
    advice = advise(load(tmp_path, job(contention=1.4, num_steps=1)))
    assert advice.measured["exposed_us"] == pytest.approx(usual.measured["exposed_us"], abs=2)
    assert any(note.startswith("1 usable step(s)") for note in advice.notes)


def test_a_single_message_size_tells_no_latency(tmp_path: Path) -> None:
    made = job(cap_mb=1000)
    loaded = load(tmp_path, made)
    advice = advise(loaded)
    assert advice.line is None
    assert advice.caps == ()
    assert advice.verdict is None
    assert "state it with --latency-us" in advice.notes[0]
    stated = advise(loaded, latency_us=100.0)
    assert stated.line is not None
    assert stated.line.us_per_byte == pytest.approx(1e-3, rel=0.01)
    fitted = advise(load(tmp_path, made, side_message=True))
    assert fitted.line is not None
    assert fitted.line.latency_us == pytest.approx(100.0, rel=0.05)


def test_buckets_out_of_order_are_noted(tmp_path: Path) -> None:
    made = job()
    reverse = [list(members) for members in made.buckets]
    reverse[0][-1], reverse[1][0] = reverse[1][0], reverse[0][-1]
    loaded = load(tmp_path, replace(made, buckets=reverse))
    assert not in_arrival_order(loaded)
    assert any("order of arrival" in note for note in advise(loaded).notes)


def test_an_idle_gpu_is_noted(tmp_path: Path) -> None:
    made = job()
    paths = []
    for rank in (0, 1):
        data = made.trace(rank)
        data["traceEvents"] = [
            row
            for row in data["traceEvents"]
            if not (row["cat"] == "kernel" and row["args"]["correlation"] % 2)
            or row["name"].startswith("nccl")
        ]
        paths.append(str(tmp_path / f"{rank}.json.gz"))
        Path(paths[-1]).write_bytes(gzip.compress(json.dumps(data).encode()))
    assert any("the GPU is idle for" in note for note in advise(load_job(paths)).notes)


def test_candidate_caps() -> None:
    for total in (1, 5000, 20 * MIB, 25 * MIB, 12e9):
        caps = candidate_caps(total)
        assert len(caps) == 20
        assert list(caps) == sorted(caps)
        assert caps[-2] * MIB < total <= caps[-1] * MIB
    assert 25.0 in candidate_caps(400 * MIB)
