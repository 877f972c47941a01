"""Learning-rate schedules against closed forms and torch's own."""

from __future__ import annotations

import pytest
import torch

from disco_fuse.trainer import Constant, Cosine, LinearWarmup


def test_constant() -> None:
    assert [Constant(lr=0.5)(step) for step in (0, 7)] == [0.5, 0.5]


def test_cosine_is_that_of_torch_and_stays_at_its_end() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    theirs = torch.optim.SGD([parameter], lr=0.4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=10, eta_min=0.1)
    ours = Cosine(lr=0.4, num_steps=10, final=0.1)
    for step in range(11):
        assert ours(step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        theirs.step()
        scheduler.step()
    assert ours(25) == pytest.approx(0.1)


def test_warm_up_multiplies_what_is_behind_it() -> None:
    schedule = LinearWarmup(num_steps=4, then=lambda step: 8.0 + step)
    assert [schedule(step) for step in range(6)] == [2.0, 4.5, 7.5, 11.0, 12.0, 13.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(lr=float("nan")), "lr must be a finite number >= 0, got nan"),
        (lambda: Cosine(lr=-1.0, num_steps=3), "lr must be a finite number >= 0, got -1.0"),
        (lambda: Cosine(lr=1.0, num_steps=3, final=float("inf")), "final must be a finite number"),
        (lambda: Cosine(lr=1.0, num_steps=0), "num_steps must be at least 1, got 0"),
        (lambda: LinearWarmup(num_steps=-1, then=Constant(lr=1.0)), "num_steps must be at least 1"),
    ],
)
def test_bad_schedules_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()
