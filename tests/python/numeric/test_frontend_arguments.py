"""Calls of `training_step` that cannot be meant: each error names the parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import training_step

LINEAR = nn.Linear(4, 4)
BATCH = (torch.zeros(3, 4), torch.zeros(3, 4))
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model must be a torch.nn.Module, got NoneType"),
    ({"model": F.relu}, "model must be a torch.nn.Module, got function"),
    ({"example_inputs": BATCH[0]}, "example_inputs must be a tuple or list of tensors"),
    ({"example_inputs": None}, "example_inputs must be a tuple or list of tensors"),
    ({"example_inputs": ()}, "one or more tensors, got \\[\\]"),
    ({"example_inputs": (BATCH[0].numpy(),)}, "one or more tensors, got \\['ndarray'\\]"),
    ({"example_inputs": BATCH[:1]}, "the model's inputs and the target: got 1"),
    ({"loss": "cross_entropy"}, "loss must be a function .* got 'cross_entropy'"),
    ({"optimizer": "sgd"}, "one of disco_fuse.frontend .* got builtins.str"),
    (
        {"optimizer": torch.optim.SGD(LINEAR.parameters(), lr=0.1)},
        "one of disco_fuse.frontend .* got torch.optim.sgd.SGD",
    ),
    ({"buffers": "sum"}, "buffers is 'sum'; allowed: broadcast, average, local"),
    ({"accumulate": 0}, "accumulate must be at least 1, got 0"),
    ({"accumulate": 2}, "accumulate=2 must divide the leading size"),
]


@pytest.mark.parametrize(("changed", "message"), WRONG)
def test_a_wrong_argument_is_named(changed: dict[str, Any], message: str) -> None:
    arguments = {
        "model": LINEAR,
        "example_inputs": BATCH,
        "loss": F.mse_loss,
        "optimizer": SGD(lr=0.1),
    } | changed
    model, examples = arguments.pop("model"), arguments.pop("example_inputs")
    with pytest.raises((TypeError, ValueError), match=message):
        training_step(model, examples, **arguments)
