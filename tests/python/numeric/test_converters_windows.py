"""Convolution, pooling and normalisation against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from converter_check import check, normal

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_layer_norm() -> None:
    def function(a: Any, weight: Any, bias: Any) -> Any:
        return (
            F.layer_norm(a, (4,), weight, bias), F.layer_norm(a, (4,)),
            F.layer_norm(a, (3, 4), eps=1e-3),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(4), normal(4)])


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    def function(a: Any, weight: Any, bias: Any) -> Any:
        mean, var = torch.zeros(3).double() + 0.5, torch.ones(3).double() * 2
        return (
            F.batch_norm(a, mean * 1, var * 1, weight, bias, training=True, momentum=0.3),
            F.batch_norm(a, mean * 1, var * 1, training=True, eps=1e-3),
        )

    check(function, [normal(*shape), normal(3), normal(3)])


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_batch_norm_with_fixed_statistics(shape: tuple[int, ...]) -> None:
    mean, var = normal(3), torch.rand(3).double() + 0.5

    def function(a: Any, weight: Any, bias: Any) -> Any:
        return (
            F.batch_norm(a, mean, var, weight, bias, training=False, eps=1e-3),
            F.batch_norm(a, mean, var), F.batch_norm(a, None, None, weight, bias, training=True),
        )  # fmt: skip

    check(function, [normal(*shape), normal(3), normal(3)])


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 5), (2, 4, 3, 2)])
def test_group_norm(shape: tuple[int, ...]) -> None:
    def function(a: Any, weight: Any, bias: Any) -> Any:
        results = [F.group_norm(a, 2, weight, bias, eps=1e-3), F.group_norm(a, 1)]
        return [*results, F.instance_norm(a)] if len(shape) > 2 else results

    check(function, [normal(*shape), normal(4), normal(4)])


@pytest.mark.parametrize(
    ("kernel", "size", "options"),
    [
        ((3, 3), (7, 6), {"padding": 1}),
        ((3, 3), (8, 7), {"stride": 2, "padding": 1}),  # rows that no window reaches
        ((3, 2), (9, 8), {"stride": (2, 3), "dilation": (2, 1), "padding": (0, 1)}),
        ((1, 1), (5, 6), {"stride": 2}),
        ((4, 4), (8, 8), {"stride": 4}),
    ],
)
def test_convolution(kernel: tuple[int, int], size: tuple[int, int], options: Any) -> None:
    def function(x: Any, weight: Any, bias: Any) -> Any:
        return F.conv2d(x, weight, bias, **options), F.conv2d(x, weight, **options)

    check(function, [normal(2, 3, *size), normal(4, 3, *kernel), normal(4)])


@pytest.mark.parametrize(
    ("size", "kernel", "options"),
    [
        ((9,), (3,), {"stride": 2, "padding": 1}),
        ((9,), (3,), {"groups": 2, "dilation": 2}),
        ((7, 6), (3, 2), {"groups": 4, "padding": 1, "stride": (2, 1)}),
        ((8, 7), (3, 3), {"groups": 2, "stride": 2, "padding": 1, "dilation": (1, 2)}),
        ((4, 5, 4), (2, 3, 2), {"stride": (1, 2, 1), "padding": (0, 1, 0)}),
        ((4, 5, 4), (2, 1, 2), {"groups": 2}),
    ],
)
def test_convolution_with_groups(size: Any, kernel: Any, options: Any) -> None:
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(size)]
    groups = options.get("groups", 1)

    def function(x: Any, weight: Any, bias: Any) -> Any:
        return convolve(x, weight, bias, **options), convolve(x, weight, **options)

    check(function, [normal(2, 4, *size), normal(8, 4 // groups, *kernel), normal(8)])


@pytest.mark.parametrize(
    ("size", "kernel", "options"),
    [
        ((5,), (3,), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((4, 5), (3, 2), {"stride": (2, 3), "output_padding": (1, 0), "groups": 2}),
        ((4, 5), (3, 2), {"padding": 1, "dilation": (1, 2), "groups": 4}),
        ((3, 2, 3), (2, 2, 1), {"stride": (1, 2, 1)}),
    ],
)
def test_transposed_convolution(size: Any, kernel: Any, options: Any) -> None:
    convolve = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[len(size)]
    groups = options.get("groups", 1)

    def function(x: Any, weight: Any, bias: Any) -> Any:
        return convolve(x, weight, bias, **options), convolve(x, weight, **options)

    check(function, [normal(2, 4, *size), normal(4, 8 // groups, *kernel), normal(8)])


@pytest.mark.parametrize(
    "options",
    [
        {}, {"stride": 1}, {"stride": 2, "padding": 1}, {"padding": (1, 0)}, {"ceil_mode": True},
        {"ceil_mode": True, "stride": 2, "padding": 1},
    ],
)  # fmt: skip
def test_max_pool(options: Any) -> None:
    def function(x: Any, ties: Any) -> Any:
        return F.max_pool2d(x, 3, **options), F.max_pool2d(ties, (3, 2), **options)

    ties = torch.randint(0, 2, (2, 2, 7, 8)).double()
    check(function, [normal(2, 2, 7, 8), ties])


def test_max_pool_over_other_axes() -> None:
    def function(x: Any, volume: Any) -> Any:
        return (
            F.max_pool1d(x, 3, 2, ceil_mode=True), F.max_pool1d(x[0], 2),
            F.max_pool3d(volume, 2, ceil_mode=True), F.max_pool3d(volume[0], (1, 3, 2), 1),
        )  # fmt: skip

    check(function, [normal(2, 5, 8), normal(1, 2, 5, 4, 6)])


def test_max_pool_with_gaps() -> None:
    def function(x: Any, line: Any, volume: Any) -> Any:
        return (
            F.max_pool2d(x, 2, dilation=2), F.max_pool2d(x[0], (3, 2), 1, 1, dilation=(3, 1)),
            F.max_pool1d(line, 3, 1, 1, dilation=2),
            F.max_pool3d(volume, 2, 2, 1, dilation=(1, 2, 3), ceil_mode=True),
        )  # fmt: skip

    check(function, [normal(2, 2, 7, 8), normal(2, 3, 9), normal(1, 2, 5, 4, 6)])


def test_positions_of_maxima() -> None:
    ties = torch.randint(0, 2, (2, 2, 7, 8)).double()

    def function(x: Any, y: Any) -> Any:
        pooled, positions = F.max_pool2d(x, 2, return_indices=True)
        return (
            pooled, positions, F.max_unpool2d(pooled, positions, 2),
            *F.max_pool2d(y, 3, 2, 1, ceil_mode=True, return_indices=True),
            *F.adaptive_max_pool2d(y, (2, 3), return_indices=True),
        )  # fmt: skip

    check(function, [normal(2, 2, 6, 6), ties])


def test_adaptive_max_pool() -> None:
    def function(x: Any, line: Any, volume: Any) -> Any:
        return (
            F.adaptive_max_pool2d(x, (2, 3)), F.adaptive_max_pool2d(x[0], (4, None)),
            F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool1d(line, 3),
            F.adaptive_max_pool3d(volume, (2, 2, 3)), F.adaptive_max_pool3d(volume[0], 1),
        )  # fmt: skip

    check(function, [normal(2, 3, 6, 7), normal(2, 2, 8), normal(1, 2, 5, 4, 6)])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": 1, "padding": 1, "count_include_pad": False},
        {"ceil_mode": True},
        {"ceil_mode": True, "stride": 2, "padding": 1},
        {"ceil_mode": True, "stride": 2, "padding": 1, "count_include_pad": False},
    ],
)
def test_average_pool(options: Any) -> None:
    def function(x: Any, y: Any, line: Any, volume: Any) -> Any:
        return (
            F.avg_pool2d(x, 3, **options), F.avg_pool2d(y, (2, 3), **options),
            F.avg_pool2d(y[0], 2, **options, divisor_override=5),
            F.avg_pool1d(line, 3, **options), F.avg_pool3d(volume, (2, 3, 2), **options),
        )  # fmt: skip

    check(
        function, [normal(2, 2, 7, 8), normal(1, 2, 6, 6), normal(1, 2, 8), normal(1, 2, 4, 6, 5)]
    )


def test_adaptive_average_pool() -> None:
    def function(x: Any, line: Any, volume: Any) -> Any:
        return (
            F.adaptive_avg_pool2d(x, (2, 3)), F.adaptive_avg_pool2d(x, (4, 5)),
            F.adaptive_avg_pool2d(x, (1, 1)), F.adaptive_avg_pool2d(x, (None, 1)),
            F.adaptive_avg_pool2d(x[0], (8, 2)), F.adaptive_avg_pool1d(line, 3),
            F.adaptive_avg_pool3d(volume, (2, 3, 4)), F.adaptive_avg_pool3d(volume[0], 1),
        )  # fmt: skip

    check(function, [normal(2, 3, 6, 6), normal(2, 3, 8), normal(1, 2, 5, 4, 7)])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_with_what_is_there(mode: str) -> None:
    def function(line: Any, x: Any, volume: Any) -> Any:
        return (
            F.pad(line, (1, 2), mode=mode), F.pad(line[:, :, :2], (1, 0), mode=mode),
            F.pad(x, (2, 1, 0, 2), mode=mode), F.pad(volume, (1, 1, 1, 0, 0, 1), mode=mode),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(2, 3, 4, 5), normal(1, 2, 3, 2, 3)])


def test_padding_of_one_element() -> None:
    check(lambda x: F.pad(x, (2, 1), mode="replicate"), [normal(2, 3, 1)])


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic", "trilinear"])
def test_interpolation(mode: str, corners: bool) -> None:
    shape = {"linear": (2, 3, 5), "trilinear": (1, 2, 3, 4, 3)}.get(mode, (2, 2, 4, 5))
    options = {"mode": mode, "align_corners": corners}

    def function(x: Any) -> Any:
        return (
            F.interpolate(x, scale_factor=2, **options),
            F.interpolate(x, scale_factor=1.7, **options),
            F.interpolate(x, size=[extent - 1 for extent in shape[2:]], **options),
        )

    check(function, [normal(*shape)])


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area"])
def test_interpolation_without_weights(mode: str) -> None:
    def function(line: Any, x: Any, volume: Any) -> Any:
        return (
            F.interpolate(line, size=7, mode=mode), F.interpolate(x, scale_factor=2, mode=mode),
            F.interpolate(x, size=(7, 3), mode=mode), F.interpolate(volume, size=2, mode=mode),
        )  # fmt: skip

    check(function, [normal(2, 3, 5), normal(2, 2, 4, 5), normal(1, 2, 3, 4, 3)])


def test_rearrangements_of_images() -> None:
    def function(x: Any) -> Any:
        return (
            F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.channel_shuffle(x, 2),
            F.unfold(x, 3, padding=1, stride=2), F.fold(F.unfold(x, 2), (4, 4), 2),
        )  # fmt: skip

    check(function, [normal(2, 4, 4, 4)])


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim: int) -> None:
    def function(v: Any, g: Any, x: Any) -> Any:
        return F.conv1d(x, torch._weight_norm(v, g, dim))

    norms = (4, 1, 1) if dim == 0 else (1, 1, 2)
    check(function, [normal(4, 3, 2), normal(*norms), normal(2, 3, 5)])
