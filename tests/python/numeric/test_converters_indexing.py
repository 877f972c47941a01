"""Operators that move, select or write elements by position, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import tvm
from converter_check import Model, check, normal

from disco_fuse.extract import extract
from disco_fuse.frontend import SGD
from disco_fuse.frontend.torch import training_step
from disco_fuse.lower import lower

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_positions() -> None:
    def function(a: Any, b: Any) -> Any:
        left, right = a.split([1, 3], dim=2)
        return (
            a.view(6, 4), a.permute(2, 0, 1), a.transpose(-1, 0).reshape(4, 6), left, right * 2,
            a.permute(2, 0, 1).permute(1, 0, 2) * 2,
            b.expand(2, 3, 4), a.unsqueeze(1) + b, a[:, 1:], a[:, :, 1:4:2], a[:, -1], a[1, :, 2],
            torch.cat([a, b.expand(2, 3, 4), a], 1), torch.stack([a, a * 2], -1), a.flatten(1),
            left.squeeze(-1), left.squeeze((-1,)), F.pad(a, (1, 2, 0, 1), value=0.5),
            F.pad(a, (-1, 0)), F.pad(a, (-1, 1, 2, -1), value=2.0), a[:, 0:2],
            torch.chunk(a, 2, -1)[1], a.repeat(1, 2, 1), aten.squeeze.dim(left, 2),
            aten.reshape.default(a, [4, 6]), aten._unsafe_view.default(a * 3, [4, 6]),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(1, 4)])


def test_writes_to_slices() -> None:
    def function(a: Any, b: Any) -> Any:
        whole, start, middle = a * 1, a * 1, a * 1
        whole[:, :] = b
        start[:, :2] = b[:, :2]
        middle[:, 1:3] = b[:, 1:3] * 2
        return whole, start, middle, a[:, 1:3].exp()

    check(function, [normal(3, 4), normal(3, 4)])


def test_views_of_fixed_places() -> None:
    def function(a: Any, b: Any) -> Any:
        return (
            a.flip(1), a.flip(0, -1), a.diagonal(), a.diagonal(1, 0, 2), a.unfold(2, 3, 1),
            a.roll(1, 1),
            a.unfold(1, 2, 1), torch.tril(a), torch.triu(a, 1), torch.diag_embed(b),
            torch.trace(a[0]), a.repeat_interleave(2, 1),
            torch.diagonal_scatter(a, b[:3, :2].T, 0, 1, 2).exp(), torch.select_scatter(a, b, 0, 1),
            torch.slice_scatter(a, a[:, :, 1:3] * b[0, 0], 2, 0, 4, 2),
            aten.as_strided_scatter.default(a, b[:2], (2, 4), (5, 3), 1),
            torch.as_strided(a * 2, (2, 5), (3, 2), 1),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(3, 4)])


def test_indexing() -> None:
    def function(weight: Any, a: Any, i: Any, j: Any) -> Any:
        return (
            F.embedding(i, weight), F.embedding(i, weight, padding_idx=1), weight[i - 2],
            torch.index_select(weight, 0, j), torch.index_select(a, 1, j), weight[j],
            torch.gather(a, 1, i), torch.gather(a, 0, i[:1, :3]),
        )  # fmt: skip

    indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
    check(function, [normal(4, 3), normal(2, 3)], [indices, torch.tensor([2, 0, 2])])


def test_scatter() -> None:
    def function(a: Any, b: Any, i: Any, k: Any) -> Any:
        return (
            aten.scatter.value(a, 1, i, 0.5),
            aten.scatter.value(a, 0, k, -2),
            torch.scatter_add(a, 1, k.expand(2, 3), b),
            torch.scatter_add(a, 0, k, b[:1]),
        )

    indices = torch.tensor([[1], [0]]), torch.tensor([[1, 0, 1]])
    check(function, [normal(2, 3), normal(2, 3)], indices)


def test_accumulation_into_rows() -> None:
    def function(a: Any, b: Any, i: Any) -> Any:
        return (
            aten.index_put.default(a, [i], b, True),
            aten.index_put.default(a, [i - 2], b[0], True),
        )

    check(function, [normal(3, 4), normal(5, 4)], [torch.tensor([0, 2, 2, 1, 2])])


def test_indexing_with_several_tensors() -> None:
    def function(a: Any, i: Any, j: Any) -> Any:
        return (
            a[i, j], a[:, i, j], a[i, :, j], a[None, i, j], a[i, j, i], a[i[:, None], j],
            a[..., i, j], a[:, None, i], a[i, :, :, None], a[[1, 0]], a[i.int(), j - 2],
            a[i, :, None, j] * 2, a[i - 2, 1],
        )  # fmt: skip

    check(function, [normal(2, 3, 4)], [torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])])


def test_writing_with_several_tensors() -> None:
    def function(a: Any, b: Any, i: Any, j: Any) -> Any:
        put = aten.index_put.default
        return (
            put(a, [i, j], b[0, 0, 0]), put(a, [None, i, j], b[:, 0, :3], True),
            put(a, [i, None, j], b[0, :, :3].T, True), put(a, [i[:, None], j], b[0, :, 1:2], True),
            put(a, [None, i], b[:, :, :], True), put(a, [None, None, j], b[:, :, :3], True),
            put(a, [i - 2, j - 1], b[0], True),
            put(a, [None, j[:2] + torch.tensor([0, 2])], b[:, :2]),
        )  # fmt: skip

    check(
        function,
        [normal(2, 3, 4), normal(2, 3, 4)],
        [torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])],
    )


def test_writing_with_a_mask() -> None:
    def function(a: Any, b: Any) -> Any:
        put, fixed = aten.index_put.default, b.detach()
        rows = fixed[:, 0] > 0
        return (
            put(a, [fixed > 0], fixed[0, 0]), put(a, [None, fixed[0] > 0], fixed[0, 0:1]),
            put(a, [rows], fixed[0]), put(a, [rows], fixed[0, 0], True),
            a.masked_fill(b > 0, 2.0) * b,
        )  # fmt: skip

    check(function, [normal(3, 4), normal(3, 4)])


def test_scatter_of_tensors() -> None:
    source = normal(2, 3)  # torch has no gradient for a source larger than the index

    def function(a: Any, b: Any, i: Any, few: Any) -> Any:
        return (
            torch.scatter(a, 1, i, b), torch.scatter(a, -1, few, b[:, :2]),
            torch.scatter(a, 0, few[:1], source), torch.scatter_add(a, 0, few, source * 2),
            torch.scatter(a, 1, few, 0.25),
            torch.scatter(a[0, 0], 0, i[0, 0] * 0, b[1, 1]),
        )  # fmt: skip

    indices = torch.tensor([[1, 0, 2], [2, 1, 0]]), torch.tensor([[0, 1], [1, 0]])
    check(function, [normal(2, 3), normal(2, 3)], indices)


def test_scatter_that_reduces() -> None:
    indices = torch.tensor([[1, 0, 1], [2, 1, 1]])
    source = normal(2, 3)

    def function(a: Any, i: Any) -> Any:
        reduced = [
            torch.scatter_reduce(a.detach(), 1, i, source, how) for how in ("amax", "amin", "prod")
        ]
        return (*reduced, torch.scatter_reduce(a, 1, i, source * a, "sum"))

    check(function, [normal(2, 3)], [indices])


def test_order() -> None:
    def function(a: Any) -> Any:
        values, positions = a.topk(2, -1)
        small = a.topk(3, 0, largest=False)
        return (
            values, positions, *small, *a.sort(1), *a.sort(1, descending=True),
            *torch.sort(a, stable=True, dim=0), *aten.sort.default(a.detach(), 0),
            a[0, 0].sort()[0],
            a.max(1)[0], a.min(0, keepdim=True)[0],
            a.argmax(), a.argmax(1), a.argmin(-1, keepdim=True), a.argmin(keepdim=True),
            a.max(1)[1],
        )  # fmt: skip

    check(function, [normal(4, 5)])


def test_order_statistics() -> None:
    def function(a: Any, b: Any) -> Any:
        return (
            *a.kthvalue(2, 1), *a.kthvalue(3, 0, keepdim=True), a[0, 0].kthvalue(1)[0],
            *a.median(1), *a.median(0, keepdim=True), a.median(), b.median(), b.median(0)[0],
            torch.quantile(a, 0.4, dim=1),
        )  # fmt: skip

    check(function, [normal(4, 5), normal(6)])


def test_places_among_boundaries() -> None:
    ordered = torch.tensor([-1.0, -0.25, 0.5, 0.5, 2.0]).double()
    rows = torch.stack([ordered, ordered + 0.5])

    def function(a: Any, i: Any) -> Any:
        x = a.detach()
        return (
            a * 2, torch.bucketize(x, ordered), torch.bucketize(x, ordered, right=True),
            torch.bucketize(i, ordered, out_int32=True), torch.searchsorted(rows, x),
            torch.searchsorted(ordered, x, side="right"), torch.searchsorted(rows, x, right=True),
        )  # fmt: skip

    values = torch.tensor([[0.5, -3.0, 2.5], [-0.25, 0.0, 1.0]]).double()
    check(function, [values], [torch.tensor([0, -1, 2])])


def test_writing_to_flat_positions() -> None:
    def function(a: Any, b: Any, i: Any) -> Any:
        return (
            torch.take(a, i), torch.take_along_dim(a, i[None, :2] % 4, 1), a.put(i[:2], b[0, :2]),
            a.put(i, b[0, :3], accumulate=True), a[0, 0].put(i[:1] * 0, b[0, 0]),
        )  # fmt: skip

    check(function, [normal(3, 4), normal(3, 4)], [torch.tensor([0, -1, 0])])


def test_filling_a_mask_in_order() -> None:
    mask = torch.tensor([[True, False, True, True], [False, False, True, False]])

    def function(a: Any, b: Any, c: Any) -> Any:
        return (
            a.masked_scatter(mask, b), a.masked_scatter(mask[0], c), a.masked_scatter(a > 0, c),
            a.masked_scatter(mask[:, :1], b) * 2,
        )  # fmt: skip

    check(function, [normal(2, 4), normal(2, 4), normal(3, 5)])


def test_adding_to_rows() -> None:
    def function(a: Any, b: Any, i: Any) -> Any:
        return (
            a.index_add(0, i, b), a.index_add(1, i, b.T, alpha=2), a.index_fill(0, i, 2.0),
            a.index_copy(0, i[:2], b[:2]), a.index_put((i,), b, accumulate=True),
        )  # fmt: skip

    check(function, [normal(4, 4), normal(3, 4)], [torch.tensor([0, 2, 2])])


def test_orders_and_running_sums_become_kernels() -> None:
    model = Model(lambda a, _: (a.topk(2, -1)[0], a.sort(0)[0], a.cumsum(1)), [normal(4, 5)])
    step = training_step(model, [torch.zeros(1)], optimizer=SGD(lr=1.0))
    lowered = lower(step.mod, tvm.target.Target("llvm"), library=False)
    names = [op.name for op in extract(lowered).graph.ops]  # an op without a kernel would raise
    assert sum("argsort" in name for name in names) == 2
    assert sum("cumsum" in name for name in names) >= 1
