"""The zoo's small models against eager PyTorch over five steps, in float64, and their data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from eager_reference import check_against_eager

from disco_fuse import zoo

SMALL = [name for name in zoo.models() if name.endswith("_small")]
NUM_STEPS = 5


def double(array: np.ndarray) -> torch.Tensor:
    """Floating-point numbers in float64, others as they are."""
    tensor = torch.from_numpy(array)
    return tensor.double() if tensor.is_floating_point() else tensor


@pytest.mark.models
@pytest.mark.parametrize("name", SMALL)
def test_small_model_trains_like_eager_torch(name: str) -> None:
    workload = zoo.workload(name)
    model = workload.model.double()
    batches = [
        tuple(map(double, batch)) for batch in itertools.islice(workload.batches(0, 1), NUM_STEPS)
    ]
    step = check_against_eager(model, batches, loss=workload.loss)
    assert step.unused_parameters == ()
    assert set(step.gradient_names) == {name for name, _ in model.named_parameters()}
    assert set(step.buffer_names) == {name for name, _ in model.named_buffers()}
