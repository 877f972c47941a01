"""Losses, distances and norms that people train with, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from converter_check import check, normal, positive

from disco_fuse.errors import UnsupportedOperatorError

REDUCTIONS = ["mean", "sum", "none"]
CLASS_WEIGHT = torch.arange(4).double() + 0.5


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 3), (2, 4, 3, 2)])
def test_classes(shape: tuple[int, ...], reduction: str) -> None:
    def function(x: Any, target: Any) -> Any:
        options = {"reduction": reduction}
        every = {"weight": CLASS_WEIGHT, "ignore_index": 1}
        return (
            F.cross_entropy(x, target, **options),
            F.cross_entropy(x, target, **options, ignore_index=2),
            F.cross_entropy(x, target, **options, **every, label_smoothing=0.1),
            F.nll_loss(x, target, **options), F.nll_loss(x, target, **options, **every),
        )  # fmt: skip

    target = torch.arange(shape[0] * 6).view(shape[0], 3, 2)[:, : (shape[2:] or [1])[0]] % 4
    target = target if len(shape) == 4 else target[..., 0]
    check(function, [normal(*shape)], [target.reshape(shape[0], *shape[2:])])


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_shares_of_classes(reduction: str) -> None:
    def function(x: Any, y: Any) -> Any:
        options = {"reduction": reduction}
        return (
            F.cross_entropy(x, y.softmax(1), **options),
            F.cross_entropy(x, y.softmax(1), **options, weight=CLASS_WEIGHT, label_smoothing=0.1),
            F.kl_div(x.log_softmax(1), y.softmax(1), **options),
            F.kl_div(x.log_softmax(1), y.log_softmax(1), **options, log_target=True),
        )

    check(function, [normal(5, 4), normal(5, 4)])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_yes_or_no(reduction: str) -> None:
    def function(x: Any, y: Any, target: Any) -> Any:
        options = {"reduction": reduction}
        logits = F.binary_cross_entropy_with_logits
        return (
            logits(x, target, **options), logits(x, target, **options, pos_weight=CLASS_WEIGHT),
            logits(x, target, **options, weight=CLASS_WEIGHT), logits(x, y.sigmoid(), **options),
            F.binary_cross_entropy(x.sigmoid(), target, **options, weight=CLASS_WEIGHT),
            F.multilabel_soft_margin_loss(x, target, **options),
            F.soft_margin_loss(x, target * 2 - 1, **options),
        )  # fmt: skip

    target = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 1]]).double()
    check(function, [normal(3, 4), normal(3, 4)], [target])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_differences(reduction: str) -> None:
    def function(x: Any, y: Any) -> Any:
        options = {"reduction": reduction}
        return (
            F.mse_loss(x, y, **options), F.l1_loss(x, y, **options), F.huber_loss(x, y, **options),
            F.huber_loss(x, y, **options, delta=0.5), F.smooth_l1_loss(x, y, **options),
            F.smooth_l1_loss(x, y, **options, beta=0.3), F.smooth_l1_loss(x, y, **options, beta=0),
            F.poisson_nll_loss(x, y.detach().abs(), **options),
        )  # fmt: skip

    check(function, [normal(3, 4), normal(3, 4)])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_comparisons_of_vectors(reduction: str) -> None:
    sign = torch.tensor([1.0, -1.0, 1.0]).double()

    def function(a: Any, b: Any, c: Any) -> Any:
        options = {"reduction": reduction}
        return (
            F.triplet_margin_loss(a, b, c, **options),
            F.triplet_margin_loss(a, b, c, **options, margin=2.0, p=1, swap=True),
            F.cosine_embedding_loss(a, b, sign, **options, margin=0.1),
            F.margin_ranking_loss(a, b, sign[:, None], **options, margin=0.2),
            F.hinge_embedding_loss(a, sign[:, None], **options),
        )

    check(function, [normal(3, 4), normal(3, 4), normal(3, 4)])


def test_distances() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return (
            F.cosine_similarity(a, b), F.normalize(a, dim=1), F.normalize(a, p=1, dim=0),
            F.pairwise_distance(a, b), F.pairwise_distance(a, b, p=1, keepdim=True),
            torch.dist(a, b), torch.dist(a, b, 3), torch.dist(a, b, float("inf")),
            torch.cdist(a, c), torch.cdist(c[:2], a, p=1), torch.cdist(a.view(1, 3, 4), c[None]),
            torch.cdist(torch.cat([a] * 9), c),  # torch takes another formula from 26 rows on
        )  # fmt: skip

    check(function, [normal(3, 4), normal(3, 4), normal(5, 4)])


def test_distance_zero_has_no_direction() -> None:
    check(lambda a: torch.cdist(a, torch.cat([a.detach(), a.detach() + 1])), [normal(3, 4)])


def test_distances_of_other_orders_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"norms of order 1 and 2, not 3\.0"):
        check(lambda a, b: torch.cdist(a, b, p=3.0), [normal(3, 4), normal(5, 4)])


def test_norms() -> None:
    def function(a: Any, image: Any, weight: Any, bias: Any) -> Any:
        return (
            F.rms_norm(a, (4,), weight), F.rms_norm(a, (4,), eps=1e-3), F.layer_norm(a, (3, 4)),
            F.instance_norm(image, None, None, weight, bias), F.local_response_norm(image, 2),
            F.local_response_norm(image, 5, alpha=0.1, k=2.0),
        )  # fmt: skip

    check(function, [normal(2, 3, 4), normal(2, 4, 3, 3), normal(4), normal(4)])


def test_sums_of_exponentials() -> None:
    def function(a: Any, b: Any) -> Any:
        return (
            a.logsumexp(1), a.logsumexp((0, 1)), torch.logaddexp(a, b), torch.xlogy(a, b.abs() + 1),
            torch.logit(a.sigmoid()), torch.logit(a.sigmoid(), eps=1e-3), F.softmin(a, 1),
        )  # fmt: skip

    check(function, [normal(3, 4), normal(3, 4)])


def test_activations_with_parameters() -> None:
    def function(a: Any, image: Any, slope: Any, slopes: Any) -> Any:
        return (
            F.prelu(a, slopes), F.prelu(a, slope), F.prelu(image, slopes),
            F.softshrink(a), F.hardshrink(a), F.threshold(a, 0.1, 0.2), F.softplus(a, 2, 1),
        )  # fmt: skip

    check(function, [normal(3, 4), normal(2, 4, 3), positive(1), positive(4)])


def test_hardsigmoid() -> None:
    """Torch's own gradient has the slope 1 / 6 in float32, also where x is float64."""
    check(lambda a: F.hardsigmoid(a * 3), [normal(3, 4)], tolerance=1e-7)
