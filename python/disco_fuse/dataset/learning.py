"""From measured groups to training, and how well models do on what they were not trained on.

families   groups equal up to sizes stay together; each fold of them is predicted by a model
           that was trained on the other folds
models     each model of the zoo is predicted by one that was trained on the other models
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from disco_fuse.cost_model.features import kernel_times_us, read_features
from disco_fuse.cost_model.gnn import GnnCostModel
from disco_fuse.cost_model.learned import LearnedCostModel, TrainingGroup
from disco_fuse.cost_model.model_file import ModelFile
from disco_fuse.dataset.report import error_shares
from disco_fuse.dataset.store import Header, MeasuredGroup, SampleFile
from disco_fuse.device import DeviceSpec

LEARNED = ("xgboost", "gnn")
MODELS = ("roofline", *LEARNED)


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """A measured group, as it is stored and as models learn from it."""

    measured: MeasuredGroup
    training: TrainingGroup


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Indices of the examples to train on and of those to predict; no example is in both."""

    train: tuple[int, ...]
    test: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Predictions of one model for every example of a split.

    Attributes
    ----------
    predicted_us, measured_us : float64[num_examples]
        Without launch.
    launch_us : float
        What every kernel costs more. Errors are stated of times with it, which is what a step pays:
        most kernels of small models take less than their launch.
    unfamiliarity : float64[num_examples]
        What the model said of its distance from its training groups; 0 for the roofline.
    """

    predicted_us: npt.NDArray[np.float64]
    measured_us: npt.NDArray[np.float64]
    launch_us: float
    unfamiliarity: npt.NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """Error shares over all, and over those that the model called familiar.

        ``without_launch`` has the same over all of the kernels' own times.
        """
        familiar = self.unfamiliarity <= 1
        data: dict[str, Any] = {**self.part(range(len(familiar)))}
        data["without_launch"] = error_shares(self.predicted_us, self.measured_us)
        if familiar.any() and not familiar.all():
            data["familiar"] = self.part(np.flatnonzero(familiar))
            data["unfamiliar"] = self.part(np.flatnonzero(~familiar))
        return data

    def part(self, indices: Any) -> dict[str, float]:
        """Error shares over some of the examples, and their number."""
        chosen = np.asarray(indices)
        predicted, measured = (
            times[chosen] + self.launch_us for times in (self.predicted_us, self.measured_us)
        )
        errors = error_shares(predicted, measured)
        return {**errors, "num_groups": len(chosen)}


def load_examples(file: SampleFile) -> list[Example]:
    """All groups of a file with their features.

    Raises
    ------
    ValueError
        An op of a group was not measured.
    """
    op_times_us = file.op_times_us()
    return [_example(item, op_times_us, file.header.device) for item in file.groups()]


def family_folds(examples: Sequence[Example], num_folds: int, seed: int = 0) -> list[Fold]:
    """Folds of about equal size over families.

    Raises
    ------
    ValueError
        There are fewer families than folds, or less than two folds.
    """
    families = sorted({item.measured.family for item in examples})
    if not 2 <= num_folds <= len(families):
        raise ValueError(
            f"{num_folds} folds of {len(families)} families; allowed: from 2 to that number"
        )
    order = np.random.default_rng(seed).permutation(len(families))
    fold_of = {families[family]: place % num_folds for place, family in enumerate(order)}
    return _folds([str(fold_of[item.measured.family]) for item in examples])


def model_folds(examples: Sequence[Example]) -> list[Fold]:
    """One fold per model of the zoo.

    Raises
    ------
    ValueError
        All groups are of one model.
    """
    names = [item.measured.model for item in examples]
    if len(set(names)) < 2:
        raise ValueError("leaving one model out needs groups of at least two models")
    return _folds(names)


def train(kind: str, examples: Sequence[Example], header: Header, seed: int = 0) -> ModelFile:
    """Train a model of ``kind`` on all ``examples``.

    Raises
    ------
    ValueError
        No such kind, or nothing to learn from.
    ImportError
        The package that trains it is missing.
    """
    groups = [item.training for item in examples]
    about = {"device": header.device, "environment": header.environment}
    if kind == "xgboost":
        from disco_fuse.cost_model.boosted import BoostedConfig, train_boosted

        return train_boosted(groups, **about, config=BoostedConfig(seed=seed))  # type: ignore[arg-type]
    if kind == "gnn":
        from disco_fuse.cost_model.gnn_training import GnnConfig, train_gnn

        return train_gnn(groups, **about, config=GnnConfig(seed=seed))  # type: ignore[arg-type]
    raise ValueError(f"no model {kind!r} to train; allowed: {', '.join(LEARNED)}")


def evaluate(
    kind: str,
    examples: Sequence[Example],
    folds: Sequence[Fold],
    header: Header,
    progress: Callable[[], None] | None = None,
) -> Evaluation:
    """Predict the test groups of every fold by a model trained on its training groups.

    Parameters
    ----------
    kind : str
        One of ``MODELS``; the roofline needs no training.
    folds : sequence of Fold
        Together they test every example once.
    progress : callable, optional
        Called after every fold.
    """
    if kind not in MODELS:
        raise ValueError(f"no cost model {kind!r}; allowed: {', '.join(MODELS)}")
    predicted = np.array([item.training.roofline_us for item in examples])
    unfamiliarity = np.zeros(len(examples))
    for fold in folds:
        test = list(fold.test)
        if kind != "roofline":
            file = train(kind, [examples[i] for i in fold.train], header)
            model = model_of(file)
            features = [examples[i].training.features for i in test]
            predicted[test] *= model.corrections(features)
            unfamiliarity[test] = model.familiarity.distances(features)
        if progress is not None:
            progress()
    measured = np.array([item.training.measured_us for item in examples])
    return Evaluation(
        predicted_us=predicted,
        measured_us=measured,
        launch_us=header.device.launch_us,
        unfamiliarity=unfamiliarity,
    )


def model_of(file: ModelFile) -> LearnedCostModel:
    """The model that ``file`` holds."""
    if file.kind == "gnn":
        return GnnCostModel(file)
    from disco_fuse.cost_model.boosted import BoostedCostModel

    return BoostedCostModel(file)


def _example(item: MeasuredGroup, op_times_us: dict[str, float], device: DeviceSpec) -> Example:
    missing = [op.name for op in item.graph.ops if op.signature not in op_times_us]
    if missing:
        raise ValueError(f"group {item.signature} of {item.model}: no time of op {missing[0]}")
    times = np.array([op_times_us[op.signature] for op in item.graph.ops])
    roofline_us = kernel_times_us(item.graph, [item.group], device, times)
    training = TrainingGroup(
        features=read_features(item.graph, [item.group], device, times)[0],
        roofline_us=float(roofline_us[0]),
        measured_us=item.sample.median_us,
    )
    return Example(measured=item, training=training)


def _folds(labels: Sequence[str]) -> list[Fold]:
    """For each label: test those of that label, train on all others."""
    return [
        Fold(
            train=tuple(i for i, other in enumerate(labels) if other != label),
            test=tuple(i for i, other in enumerate(labels) if other == label),
        )
        for label in sorted(set(labels))
    ]
