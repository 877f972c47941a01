"""The trained models and the measured groups that come with the package."""

from __future__ import annotations

import numpy as np
import pytest

from disco_fuse.cost_model.registry import SHIPPED, choose_cost_model
from disco_fuse.dataset.learning import Example, load_examples
from disco_fuse.dataset.packed import SHIPPED_SAMPLES, read_samples
from disco_fuse.dataset.report import error_shares
from disco_fuse.device import DeviceSpec


@pytest.fixture(scope="module")
def shipped() -> tuple[list[Example], DeviceSpec]:
    with read_samples(SHIPPED_SAMPLES) as file:
        return load_examples(file), file.header.device


def test_at_least_3000_groups_of_the_small_zoo(shipped: tuple[list[Example], DeviceSpec]) -> None:
    examples, _ = shipped
    assert sum(item.measured.model.endswith("_small") for item in examples) >= 3000
    assert len({item.measured.signature for item in examples}) == len(examples)


@pytest.mark.parametrize("kind", ["xgboost", "gnn"])
def test_models_load_and_fit_what_they_saw(
    kind: str, shipped: tuple[list[Example], DeviceSpec]
) -> None:
    """A model of other features would be refused, one of other data would miss by far."""
    examples, device = shipped
    model = choose_cost_model(kind, device).model
    features = [item.training.features for item in examples]
    kernels = np.array([item.training.roofline_us for item in examples])
    predicted = kernels * model.corrections(features)  # type: ignore[attr-defined]
    measured = [item.training.measured_us for item in examples]
    roofline = error_shares(kernels, measured)["mape"]
    assert error_shares(predicted, measured)["mape"] < 0.5 * roofline


def test_they_are_what_auto_takes() -> None:
    with read_samples(SHIPPED_SAMPLES) as file:
        chosen = choose_cost_model("auto", file.header.device)
    assert chosen.reason.startswith("gnn: the first of")
    assert {path.name for path in SHIPPED.iterdir()} == {
        "README",
        "gnn.npz",
        "samples.db.xz",
        "xgboost.npz",
    }
