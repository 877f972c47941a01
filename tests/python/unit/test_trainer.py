"""The training loop on one rank: equal losses after a resume, skipped steps, ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F  # noqa: N812
from click.testing import CliRunner
from data_parallel_workloads import network, overflowing
from numbers_data import Numbers
from training_plans import small_workload, write_training_plan

from disco_fuse.cli.main import main
from disco_fuse.frontend import AdamW
from disco_fuse.frontend.torch import write_back
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import loopback
from disco_fuse.trainer import Checkpoints, Cosine, EventLog, Trainer
from disco_fuse.workload import Batch, Workload

Values = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    write_training_plan(small_workload(), folder)
    return folder


def runner_of(folder: Path) -> StepRunner:
    with np.load(folder / "values.npz") as values:
        return StepRunner(folder, loopback(), dict(values))


def trainer_of(folder: Path, data: Iterator[Batch] | None = None, **options: Any) -> Trainer:
    return Trainer(runner_of(folder), Numbers() if data is None else data, **options)


def assert_equal(a: Values, b: Values) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


def plain_generator(rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
    """The same batches, but the position cannot be stored."""
    yield from Numbers(rank, world_size)


@pytest.mark.parametrize("data", [Numbers, plain_generator])
def test_resumed_losses_are_equal_bit_for_bit(data: Any, plan: Path, tmp_path: Path) -> None:
    schedule = Cosine(lr=0.05, num_steps=12)
    whole = trainer_of(plan, data(), schedule=schedule)
    expected = whole.train(12)
    assert (expected.step, expected.stop_reason, len(expected.losses)) == (12, "steps", 12)
    assert len(set(expected.losses)) == 12
    checkpoints = Checkpoints(folder=tmp_path, every=5)
    first = trainer_of(plan, data(), schedule=schedule, checkpoints=checkpoints)
    assert first.restored is None
    losses = first.train(7).losses
    second = trainer_of(plan, data(), schedule=schedule, checkpoints=checkpoints)
    assert second.restored is not None
    assert (second.step, second.restored.same_plan, second.restored.damaged) == (7, True, ())
    assert (*losses, *second.train(12).losses) == expected.losses
    assert_equal(second.runner.values(), whole.runner.values())
    steps = sorted(int(path.stem.split("-")[1]) for path in tmp_path.iterdir())
    assert steps == [10, 12]


def test_train_goes_on_where_it_stopped(plan: Path) -> None:
    expected = trainer_of(plan).train(6).losses
    trainer = trainer_of(plan)
    assert (*trainer.train(2).losses, *trainer.train(6).losses) == expected
    assert trainer.train(6).losses == ()


@pytest.mark.parametrize("how", ["cut", "changed"])
def test_damaged_checkpoint_is_passed_over_and_said(how: str, plan: Path, tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path, every=2)
    expected = trainer_of(plan, checkpoints=checkpoints).train(6).losses
    newest = tmp_path / "step-000000006.checkpoint"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content if how == "changed" else content[:-100])
    trainer = trainer_of(plan, checkpoints=checkpoints)
    assert trainer.restored is not None
    assert trainer.step == 4
    (damaged,) = trainer.restored.damaged
    assert str(newest) in damaged
    assert "cut short or damaged" in damaged
    assert trainer.train(5).losses == expected[4:5]
    # The damaged file is none of the two that are kept.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-00000000{step}.checkpoint" for step in (4, 5, 6)
    ]
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole: .*; .*; "):
        trainer_of(plan, checkpoints=checkpoints)


def test_checkpoint_of_another_model_is_refused(plan: Path, tmp_path: Path) -> None:
    workload = Workload(
        name="other", model=network(), loss=F.mse_loss, optimizer=AdamW(lr=0.1), batches=Numbers
    )
    write_training_plan(workload, tmp_path / "plan")
    checkpoints = Checkpoints(folder=tmp_path / "checkpoints")
    trainer_of(plan, checkpoints=checkpoints).train(1)
    with pytest.raises(ValueError, match="of step 1 is of another model or optimizer: it lacks"):
        trainer_of(tmp_path / "plan", checkpoints=checkpoints)


class SpoiledNumbers(Numbers):
    """The third batch holds a NaN."""

    num_drawn = 0

    def __next__(self) -> Batch:
        x, y = super().__next__()
        self.num_drawn += 1
        return (x * np.float32(np.nan) if self.num_drawn == 3 else x), y


def test_nan_stops(plan: Path, tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path, every=2)
    trainer = trainer_of(plan, SpoiledNumbers(), checkpoints=checkpoints)
    result = trainer.train(6)
    assert (result.step, result.stop_reason) == (3, "nan")
    assert result.detail == "the loss of step 3 is nan on rank 0"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000002.checkpoint"]


def test_skipped_step_changes_nothing(plan: Path) -> None:
    states: list[Values] = []
    trainer = trainer_of(
        plan,
        SpoiledNumbers(),
        on_nan="skip",
        on_event=lambda _: states.append(trainer.runner.values()),
    )
    result = trainer.train(5)
    assert (result.step, result.stop_reason, result.skipped) == (5, "steps", (3,))
    assert np.isnan(result.losses[2])
    assert np.isfinite(np.delete(result.losses, 2)).all()
    # start, step 1, step 2, step 3 (spoiled), skip: as after step 2
    assert_equal(states[2], states[4])
    assert np.isnan(states[3]["0.weight"]).all()


def test_loss_scaling_skips_by_itself(tmp_path: Path) -> None:
    write_training_plan(overflowing(), tmp_path)
    trainer = trainer_of(tmp_path, SpoiledNumbers(), on_nan="skip")
    before = trainer.runner.values()
    trainer.train(2)
    after_two = trainer.runner.values()
    assert trainer.train(3).skipped == (3,)
    after = trainer.runner.values()
    np.testing.assert_array_equal(after_two["0.weight"], after["0.weight"])
    assert after["optimizer.loss_scale"] == before["optimizer.loss_scale"] / 2


def test_end_of_data(plan: Path, tmp_path: Path) -> None:
    data = iter([next(Numbers()) for _ in range(3)])
    result = trainer_of(plan, data, checkpoints=Checkpoints(folder=tmp_path)).train(10)
    assert (result.step, result.stop_reason) == (3, "data")
    assert result.detail == "rank 0 has no more batches"
    assert trainer_of(plan, iter([])).train(10).step == 0
    with pytest.raises(ValueError, match="the data ends before step 3, where training resumes"):
        trainer_of(plan, iter([]), checkpoints=Checkpoints(folder=tmp_path))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_ends_with_a_checkpoint(number: int, plan: Path, tmp_path: Path) -> None:
    def on_event(event: dict[str, Any]) -> None:
        if (event["event"], event["step"]) == ("step", 2):
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    trainer = trainer_of(plan, checkpoints=Checkpoints(folder=tmp_path), on_event=on_event)
    result = trainer.train(100)
    assert (result.stop_reason, result.detail) == ("terminated", "rank 0 was asked to end")
    assert result.step in (2, 3)
    assert (tmp_path / f"step-00000000{result.step}.checkpoint").is_file()
    assert signal.getsignal(number) == before


def test_evaluation_and_events(plan: Path, tmp_path: Path) -> None:
    log = EventLog(tmp_path / "logs" / "events.jsonl")
    seen: list[float] = []

    def evaluate(values: Any) -> dict[str, float]:
        seen.append(float(np.linalg.norm(values["0.weight"])))
        return {"norm": seen[-1]}

    trainer = trainer_of(
        plan, SpoiledNumbers(), evaluate=evaluate, evaluate_every=2, on_nan="skip", on_event=log
    )
    trainer.train(4)
    lines = (tmp_path / "logs" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    kinds = [event["event"] for event in events]
    assert kinds == ["start", "step", "step", "evaluation", "step", "skip", "step", "evaluation",
                     "end"]  # fmt: skip
    assert [event["norm"] for event in events if event["event"] == "evaluation"] == seen
    assert events[4]["loss"] == "nan"
    assert events[1]["losses"] == [events[1]["loss"]]
    assert (events[0]["plan"], events[-1]["reason"]) == ("default", "steps")


def test_values_go_back_into_the_model(plan: Path) -> None:
    trainer = trainer_of(plan)
    trainer.train(3)
    values, model = trainer.runner.values(), small_workload().model
    assert write_back(model, values) == ()
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), values[name], err_msg=name)
    assert model[1].num_batches_tracked == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_nan": "ignore"}, "on_nan is 'ignore'; allowed: stop, skip"),
        ({"evaluate_every": 2}, "evaluate_every is 2; allowed: from 1 with evaluate, 0 without"),
        ({"evaluate": dict}, "evaluate_every is 0"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str, plan: Path) -> None:
    with pytest.raises(ValueError, match=message):
        trainer_of(plan, **options)


def test_bad_options_of_checkpoints(tmp_path: Path) -> None:
    for options, message in (
        ({"every": -1}, "every is -1; allowed: from 0"),
        ({"keep": 1}, "keep is 1; allowed: from 2"),
        ({"on_error": "ignore"}, "on_error is 'ignore'; allowed: stop, continue"),
    ):
        with pytest.raises(ValueError, match=message):
            Checkpoints(folder=tmp_path, **options)  # type: ignore[arg-type]


def test_bad_learning_rate_and_position(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the schedule gives nan for step 0; allowed: finite"):
        trainer_of(plan, schedule=lambda _: float("nan")).train(1)

    class Unstorable(Numbers):
        def state_dict(self) -> dict[str, Any]:
            return {"drawn": np.arange(3)}

    with pytest.raises(TypeError, match=r"state_dict\(\) of the data must be what JSON can hold"):
        trainer_of(plan, Unstorable(), checkpoints=Checkpoints(folder=tmp_path)).train(1)


DATA = """
import sys
import numpy as np

def batch():
    return np.ones((4, 12), np.float32), np.ones((4, 5), np.float32)

def two(rank, size):
    yield batch()
    yield batch()

def one_array(rank, size):
    yield batch()
    yield batch()[:1]

def strings(rank, size):
    yield "abc"

def empty(rank, size):
    return iter(())

def leaves(rank, size):
    yield batch()
    sys.exit(0)

def raises(rank, size):
    raise KeyError("no file")
    yield
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("one_array", "a batch is 1 arrays, float32[4, 12]; plan 'default' takes 2: 'input' f"),
        ("strings", "a batch is 1 arrays, <U3[]; plan 'default' takes 2: "),
        ("empty", "data: rank 0 has no more batches"),
        ("leaves", "the iterator of FILE:leaves raised SystemExit at FILE, line 24: 0"),
        ("raises", "the iterator of FILE:raises raised KeyError at FILE, line 27: 'no file'"),
        ("two", None),
    ],
)
def test_data_of_a_user(function: str, message: str | None, plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text(DATA)
    done = CliRunner().invoke(main, ["run", str(plan), "--data", f"{file}:{function}"])
    assert isinstance(done.exception, SystemExit | None)
    assert done.exit_code == (0 if message is None else 1), done.output
    if message is None:
        assert "| data " in done.stdout
    else:
        assert message.replace("FILE", str(file)) in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_does_not_end_a_training(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "events-rank-0.jsonl").symlink_to("/dev/full")
    run = ["run", str(plan), "--steps", "2"]
    done = CliRunner().invoke(main, [*run, "-O", str(tmp_path)])
    assert done.exit_code == 1, done.output
    assert "| steps " in done.stdout
    file = tmp_path / "events-rank-0.jsonl"
    assert f"Error: {file}: No space left on device: later events are missing" in " ".join(
        done.stderr.split()
    )
    done = CliRunner().invoke(main, [*run, "--trace", "/dev/full"])
    assert done.exit_code == 1, done.output
    assert "/dev/full: No space left on device" in done.stderr
