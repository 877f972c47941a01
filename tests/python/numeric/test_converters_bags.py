"""Embedding bags against eager PyTorch: values and gradients of table and sample weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from converter_check import check, normal

from disco_fuse.errors import UnsupportedOperatorError

# The second bag is empty; rows 3 and 7 stand in one bag twice.
INDICES = torch.tensor([1, 3, 3, 0, 7, 7, 2, 9, 4, 5])
OFFSETS = torch.tensor([0, 3, 3, 8])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_unequal_size(mode: str) -> None:
    def function(table: Any, indices: Any, offsets: Any) -> Any:
        return (
            F.embedding_bag(indices, table, offsets, mode=mode),
            F.embedding_bag(indices, table, offsets, mode=mode, padding_idx=3),
        )

    check(function, [normal(10, 4)], [INDICES, OFFSETS])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_equal_size(mode: str) -> None:
    def function(table: Any, indices: Any) -> Any:
        return F.embedding_bag(indices.view(2, 5), table, mode=mode)

    check(function, [normal(10, 4)], [INDICES])


def test_the_first_of_equal_rows_wins() -> None:
    table = torch.randint(0, 2, (10, 4)).double()
    check(
        lambda table, *bags: F.embedding_bag(bags[0], table, bags[1], mode="max"),
        [table],
        [INDICES, OFFSETS],
    )


def test_weights_of_samples() -> None:
    def function(table: Any, weights: Any, indices: Any, offsets: Any) -> Any:
        bag = F.embedding_bag
        return (
            bag(indices, table, offsets, mode="sum", per_sample_weights=weights),
            bag(indices, table, offsets, mode="sum", per_sample_weights=weights, padding_idx=3),
        )

    check(function, [normal(10, 4), normal(10)], [INDICES, OFFSETS])


@pytest.mark.parametrize("option", ["scale_grad_by_freq", "sparse", "include_last_offset"])
def test_options_that_are_refused(option: str) -> None:
    def function(table: Any, indices: Any, offsets: Any) -> Any:
        return F.embedding_bag(indices, table, offsets, mode="sum", **{option: True})

    with pytest.raises(UnsupportedOperatorError, match=option):
        check(function, [normal(10, 4)], [INDICES, OFFSETS])
