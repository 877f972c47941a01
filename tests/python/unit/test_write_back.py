"""Trained values into torch modules: tied weights, dtypes, what does not fit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from disco_fuse.frontend.torch import write_back


class Tied(torch.nn.Module):
    """One matrix under two names, a bfloat16 and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.unread = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.tensor(0))


VALUES = {
    "scale": np.array([1.5, -2.0, 0.25], ml_dtypes.bfloat16),
    "count": np.array(7),
    "scale.momentum": np.zeros(3, np.float32),
    "optimizer.learning_rate": np.array(0.1),
}
WEIGHT = np.arange(15, dtype=np.float32).reshape(5, 3)


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_tied_weights_stay_tied(name: str) -> None:
    model = Tied()
    assert write_back(model, VALUES | {name: WEIGHT}) == ("unread",)
    assert model.head.weight is model.embed.weight
    np.testing.assert_array_equal(model.state_dict()["head.weight"].numpy(), WEIGHT)
    assert model.scale.tolist() == [1.5, -2.0, 0.25]
    assert model.scale.dtype is torch.bfloat16
    assert (model.count.item(), model.count.dtype) == (7, torch.int64)
    assert model.unread.tolist() == [1.0, 1.0]
    assert model.embed.weight.requires_grad


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("embed.weight", WEIGHT.T, r"'embed.weight' is torch.float32\[5, 3\] in the module, the"),
        ("scale", np.ones(3, np.float32), r"'scale' is torch.bfloat16\[3\].* float32\[3\]"),
        ("count", np.array(7, np.int32), r"'count' is torch.int64\[\].* int32\[\]"),
    ],
)
def test_other_shapes_and_dtypes_are_refused(name: str, value: np.ndarray, message: str) -> None:
    model = Tied()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        write_back(model, VALUES | {"embed.weight": WEIGHT} | {name: value})
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]), key


def test_values_of_another_module_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the values \['0.weight'\] ... are not of this module"):
        write_back(Tied(), {"0.weight": WEIGHT})
