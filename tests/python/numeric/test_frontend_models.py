"""Whole models against eager PyTorch over several steps, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from eager_reference import check_against_eager
from torch import nn

from disco_fuse.frontend import SGD
from disco_fuse.zoo.byte_gpt import ByteGPT, next_byte_loss, text_batches


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class ConvNet(nn.Module):
    """A residual block with batch norm and the usual pools, small enough for plain loops."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(4, momentum=0.3)
        self.shortcut = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        x = F.relu(self.norm2(self.conv2(x)) + self.shortcut(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def test_byte_gpt() -> None:
    model = ByteGPT(num_layers=2, width=32, num_heads=4, context=16).double()
    data = text_batches(batch=2, context=16)
    batches = [tuple(map(torch.from_numpy, next(data))) for _ in range(5)]
    step = check_against_eager(model, batches, loss=next_byte_loss)
    assert step.input_names == ("tokens", "target")
    assert "head.weight" not in step.parameter_names
    assert step.parameter_names.count("embedding.weight") == 1
    assert step.unused_parameters == ()


def test_convnet_updates_its_batch_statistics() -> None:
    batches = [(torch.randn(3, 2, 11, 11).double(), torch.randint(5, (3,))) for _ in range(5)]
    step = check_against_eager(ConvNet().double(), batches, loss=F.cross_entropy)
    assert "norm1.num_batches_tracked" in step.buffer_names
    assert set(step.buffer_names) <= set(step.output_names)


def test_mlp_over_twenty_steps_of_every_sgd() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    batches = [(torch.randn(4, 6).double(), torch.randn(4, 3).double()) for _ in range(20)]
    for sgd in (
        SGD(lr=0.1),
        SGD(lr=0.1, weight_decay=0.01),
        SGD(lr=0.1, momentum=0.9),
        SGD(lr=0.1, momentum=0.8, weight_decay=0.02, nesterov=True),
    ):
        check_against_eager(model, batches, loss=F.mse_loss, optimizer=sgd)


def test_byte_gpt_has_the_advertised_size() -> None:
    count = sum(parameter.numel() for parameter in ByteGPT().parameters())
    assert 3_000_000 < count < 3_500_000


def test_text_batches_are_shards_of_one_order() -> None:
    whole = text_batches(batch=4, context=16, seed=3)
    shards = [text_batches(batch=2, context=16, rank=r, world_size=2, seed=3) for r in range(2)]
    for _ in range(3):
        tokens, targets = next(whole)
        parts = [next(shard) for shard in shards]
        assert tokens.shape == targets.shape == (4, 16)
        assert tokens.dtype == targets.dtype == np.int64
        np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
        np.testing.assert_array_equal(tokens[0::2], parts[0][0])
        np.testing.assert_array_equal(tokens[1::2], parts[1][0])
    assert bytes(next(whole)[0][0].astype(np.uint8)).isascii()
    other = next(text_batches(batch=4, context=16, seed=4))[0]
    assert not np.array_equal(other, next(text_batches(batch=4, context=16, seed=3))[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 2, "rank": 2, "world_size": 2}, r"rank must be in \[0, 2\), got 2"),
        ({"batch": 0}, "must be positive, got 0"),
        ({"batch": 10**6}, "cannot fill 1000000"),
    ],
)
def test_text_batches_that_cannot_be(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_batches(**options)
