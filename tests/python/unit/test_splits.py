"""What models are tested on was never trained on, and errors are counted once per group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measured_groups import HEADER, measured_groups, op_samples

from disco_fuse.dataset import SampleFile, learning
from disco_fuse.dataset.learning import (
    Evaluation,
    Example,
    evaluate,
    family_folds,
    load_examples,
    model_folds,
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    groups = measured_groups(60)
    with SampleFile(tmp_path_factory.mktemp("samples") / "s.db", HEADER) as file:
        file.add(groups)
        file.add_ops(op_samples(groups))
        return load_examples(file)


def test_folds_test_everything_once_and_train_on_the_rest(examples: list[Example]) -> None:
    for folds in (family_folds(examples, 4), model_folds(examples)):
        everything = set(range(len(examples)))
        assert sorted(i for fold in folds for i in fold.test) == sorted(everything)
        for fold in folds:
            assert set(fold.train) == everything - set(fold.test)
            assert fold.train
            assert fold.test


def test_families_and_models_are_never_on_both_sides(examples: list[Example]) -> None:
    for folds, key in (
        (family_folds(examples, 4), "family"),
        (model_folds(examples), "model"),
    ):
        for fold in folds:
            sides = [
                {getattr(examples[i].measured, key) for i in side}
                for side in (fold.train, fold.test)
            ]
            assert not sides[0] & sides[1]
    assert len(model_folds(examples)) == 3


def test_seeds_change_folds_and_nothing_else_does(examples: list[Example]) -> None:
    assert family_folds(examples, 4) == family_folds(examples, 4)
    assert family_folds(examples, 4) != family_folds(examples, 4, seed=1)


def test_no_test_group_is_trained_on(
    examples: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups that reach the training are those of the fold, whatever its splits say."""
    seen: list[set[int]] = []
    real = learning.train

    def spy(kind: str, chosen: list[Example], *rest: Any) -> Any:
        seen.append({id(item) for item in chosen})
        return real(kind, chosen, *rest)

    monkeypatch.setattr(learning, "train", spy)
    folds = family_folds(examples, 3)
    evaluate("xgboost", examples, folds, HEADER)
    assert len(seen) == 3
    for fold, trained in zip(folds, seen, strict=True):
        assert trained == {id(examples[i]) for i in fold.train}
        assert not trained & {id(examples[i]) for i in fold.test}


def test_evaluation_of_held_out_families(examples: list[Example]) -> None:
    folds = family_folds(examples, 4)
    roofline = evaluate("roofline", examples, folds, HEADER).to_json()
    learned = evaluate("xgboost", examples, folds, HEADER).to_json()
    assert roofline["num_groups"] == learned["num_groups"] == len(examples)
    assert learned["mape"] < 0.5 * roofline["mape"]
    assert 0 <= learned["within_10"] <= learned["within_14"] <= 1
    with pytest.raises(ValueError, match="no cost model 'oracle'"):
        evaluate("oracle", examples, folds, HEADER)
    with pytest.raises(ValueError, match="no model 'roofline' to train; allowed: xgboost, gnn"):
        learning.train("roofline", examples, HEADER)


def test_familiar_groups_are_counted_apart() -> None:
    result = Evaluation(
        predicted_us=np.array([1.0, 1.0, 2.0]),
        measured_us=np.ones(3),
        launch_us=1.0,
        unfamiliarity=np.array([0.5, 1.0, 3.0]),
    ).to_json()
    assert result["familiar"] == {"within_10": 1.0, "within_14": 1.0, "mape": 0.0, "num_groups": 2}
    assert result["unfamiliar"]["mape"] == 0.5
    assert result["mape"] == pytest.approx(1 / 6)
    assert result["without_launch"]["mape"] == pytest.approx(1 / 3)


def test_too_many_folds_too_few_models_and_unmeasured_ops(
    examples: list[Example], tmp_path: Path
) -> None:
    for num_folds in (1, 999):
        with pytest.raises(ValueError, match=f"{num_folds} folds of .* families; allowed: from 2"):
            family_folds(examples, num_folds)
    of_one = [e for e in examples if e.measured.model == "model0"]
    with pytest.raises(ValueError, match="groups of at least two models"):
        model_folds(of_one)
    with SampleFile(tmp_path / "s.db", HEADER) as file:
        file.add(measured_groups(1))
        with pytest.raises(ValueError, match=r"group .* of model\d: no time of op"):
            load_examples(file)
