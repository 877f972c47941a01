"""Times of ops measured inside a step that all ranks run at once."""

from __future__ import annotations

import pytest
import torch

from conftest import RunRanks
from disco_fuse.extract import Extraction, extract
from disco_fuse.frontend.optimizer import SGD
from disco_fuse.frontend.torch import training_step
from disco_fuse.graph import OpKind
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.library import library_available
from disco_fuse.lower import lower
from disco_fuse.profile.in_step import profile_in_step
from disco_fuse.target import host_target

WIDE = 512


def two_layers() -> tuple[object, Extraction]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, WIDE), torch.nn.ReLU(), torch.nn.Linear(WIDE, 4))
    batch = [torch.randn(64, 8), torch.randint(0, 4, (64,))]
    loss = torch.nn.functional.cross_entropy
    step = training_step(model, batch, loss=loss, optimizer=SGD(lr=0.1, momentum=0.9))
    mod = lower(InsertAllReduce()(step.mod), host_target(), library=library_available())
    return mod, extract(mod)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_kernel_has_a_time_and_messages_have_none(
    run_ranks: RunRanks,  # noqa: ARG001 - skips without mpirun
    num_ranks: int,
) -> None:
    mod, extraction = two_layers()
    ops = extraction.graph.ops
    profile = profile_in_step(mod, extraction, host_target(), num_ranks)
    times_us = profile.op_times_us
    assert times_us.shape == (len(ops),)
    # Two cores, and a transport that copies: some of the compute is lost, never all of it.
    assert profile.contention == 1 if num_ranks == 1 else 1 <= profile.contention < 20
    for op, time_us in zip(ops, times_us, strict=True):
        assert (time_us == 0.0) == (op.kind == OpKind.ALLREDUCE), op.name
    # One update of 4096 numbers against one of 4.
    named = {op.name: float(time) for op, time in zip(ops, times_us, strict=True)}
    by_work = sorted(
        (op for op in ops if op.kind != OpKind.ALLREDUCE), key=lambda op: op.bytes_written
    )
    small, large = by_work[0], by_work[-1]
    assert large.bytes_written > 1000 * small.bytes_written
    assert named[large.name] > named[small.name]


def test_convolutions_of_the_library_need_it_too() -> None:
    """A step whose only library calls are convolutions."""
    model, batch = torch.nn.Conv2d(3, 4, 3), [torch.randn(2, 3, 8, 8), torch.randn(2, 4, 6, 6)]
    loss = torch.nn.functional.mse_loss
    step = training_step(model, batch, loss=loss, optimizer=SGD(lr=0.1))
    mod = lower(InsertAllReduce()(step.mod), host_target(), library=library_available())
    profile = profile_in_step(mod, extract(mod), host_target(), 1)
    assert (profile.op_times_us > 0).any()


def test_a_failed_rank_is_an_error() -> None:
    mod, extraction = two_layers()

    class Failed:
        returncode = 3

    with pytest.raises(RuntimeError, match="ended with status 3"):
        profile_in_step(mod, extraction, host_target(), 2, run_ranks=lambda *_, **__: Failed())
