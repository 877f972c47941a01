"""Learned cost models: training, files, predictions, and which one ``auto`` takes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import CLUSTER, DEVICE, fork
from measured_groups import chain, training_groups, true_time_us

from disco_fuse.cost_model import Group, LearnedCostModel, RooflineCostModel, choose_cost_model
from disco_fuse.cost_model.boosted import BoostedConfig, BoostedCostModel, train_boosted
from disco_fuse.cost_model.features import FEATURE_VERSION, read_features
from disco_fuse.cost_model.gnn import GnnCostModel, run_network
from disco_fuse.cost_model.gnn_training import (
    GnnConfig,
    GroupNetwork,
    batch_graph,
    fit_network,
    train_gnn,
)
from disco_fuse.cost_model.learned import weights
from disco_fuse.cost_model.model_file import ModelFile
from disco_fuse.cost_model.registry import SHIPPED
from disco_fuse.graph import OpKind
from disco_fuse.search import search

CONFIG = GnnConfig(
    num_networks=1, num_layers=2, hidden=16, num_heads=2, dense=16, num_epochs=40, batch=16
)
ABOUT: dict[str, Any] = {"device": DEVICE, "environment": "made up"}


@pytest.fixture(scope="module")
def files() -> dict[str, ModelFile]:
    groups = training_groups(80)
    return {
        "xgboost": train_boosted(groups, **ABOUT, config=BoostedConfig(num_rounds=200)),
        "gnn": train_gnn(groups, **ABOUT, config=CONFIG),
    }


def load(kind: str, path: Path, **more: Any) -> LearnedCostModel:
    return {"xgboost": BoostedCostModel, "gnn": GnnCostModel}[kind].load(path, **more)


@pytest.fixture(params=["xgboost", "gnn"])
def saved(request: pytest.FixtureRequest, files: dict[str, ModelFile], tmp_path: Path) -> Any:
    path = tmp_path / f"{request.param}.npz"
    files[request.param].save(path)
    return request.param, path


def test_models_learn_a_rule_and_apply_it_to_unseen_groups(saved: Any) -> None:
    model = load(*saved)
    for length, elements, reduces in ((3, 5000, True), (5, 9000, False)):
        graph, group = chain(length, 16 * elements, reduces=reduces)
        (predicted,) = model.predict(graph, [group])
        expected = DEVICE.launch_us + true_time_us(graph, group)
        assert predicted == pytest.approx(expected, rel=0.1)


def test_a_kernel_far_below_its_launch_counts_little() -> None:
    groups = [replace(training_groups(1)[0], measured_us=us) for us in (0.001, 1.0, 99.0)]
    assert weights(groups, 1.0).tolist() == pytest.approx([0.02**0.5, 0.5**0.5, 0.99**0.5])


def test_an_op_alone_costs_what_was_measured(saved: Any) -> None:
    graph, group = chain(2, 1600)
    model = load(*saved, launch_us=7.0, op_times_us=np.array([3.0, 4.0]))
    singles = [Group(ops=(0,), outputs=(0,)), Group(ops=(1,), outputs=(1,))]
    assert model.predict(graph, singles).tolist() == [10.0, 11.0]
    times = model.predict(graph, [*singles, group, singles[0]])
    assert times[[0, 1, 3]].tolist() == [10.0, 11.0, 10.0]
    assert times[2] == model.predict(graph, [group])[0]


def test_entries_of_allreduce_ops_are_ignored(saved: Any) -> None:
    graph = fork()
    group = Group(ops=(0, 1), outputs=(0, 1))
    times = [1.0, 2.0, 3.0, np.nan, 5.0]
    assert graph.ops[3].kind is OpKind.ALLREDUCE
    model = load(*saved, op_times_us=np.array(times))
    assert 0 < model.predict(graph, [group])[0] < 1e3


def test_corrections_stay_in_the_range_of_training(saved: Any) -> None:
    kind, path = saved
    file = ModelFile.load(path, kind)
    narrow = ModelFile(**{**vars(file), "arrays": {**file.arrays, "limits": np.array([0.5, 0.5])}})
    narrow.save(path)
    graph, group = chain(2, 1600, reduces=True)
    roofline_us = RooflineCostModel(DEVICE).predict(graph, [group])[0] - DEVICE.launch_us
    expected = DEVICE.launch_us + roofline_us * np.exp(0.5)
    assert load(kind, path).predict(graph, [group])[0] == pytest.approx(expected, abs=2e-3)


def test_saving_and_loading_changes_nothing(saved: Any, files: dict[str, ModelFile]) -> None:
    kind, path = saved
    graph, group = chain(4, 3200)
    model = load(kind, path)
    fresh = {"xgboost": BoostedCostModel, "gnn": GnnCostModel}[kind](files[kind])
    assert model.predict(graph, [group]).tolist() == fresh.predict(graph, [group]).tolist()
    assert model.name == kind
    assert model.digest == fresh.digest
    assert model.digest != load(kind, path, launch_us=1.0).digest
    assert model.digest != load(kind, path, op_times_us=np.ones(4)).digest


def test_search_asks_learned_models(saved: Any) -> None:
    graph, _ = chain(6, 1600)
    model = load(*saved)
    result = search(graph, model, CLUSTER)
    unit = max(result.best.units(graph), key=lambda one: len(one.ops))
    assert len(unit.ops) == 6
    whole = model.predict(graph, [Group(ops=unit.ops, outputs=unit.outputs)])[0]
    assert result.makespan_us == pytest.approx(whole, abs=1e-3)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("FORMAT", "has format 1; this release reads"),
        ("FEATURE_VERSION", f"has feature version {FEATURE_VERSION};"),
    ],
)
def test_files_of_other_versions_are_refused(
    saved: Any, field: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"disco_fuse.cost_model.model_file.{field}", 99)
    with pytest.raises(ValueError, match=message):
        load(*saved)


def test_damaged_and_wrong_files_are_refused(saved: Any, files: dict[str, ModelFile]) -> None:
    kind, path = saved
    content = path.read_bytes()
    other = "gnn" if kind == "xgboost" else "xgboost"
    with pytest.raises(ValueError, match=f"has kind '{kind}'; this release reads '{other}'"):
        load(other, path)
    for damaged in (b"", b"nonsense", content[: len(content) // 2], content[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is not the file of a cost model"):
            load(kind, path)
    arrays = {name: value for name, value in files[kind].arrays.items() if name != "limits"}
    ModelFile(**{**vars(files[kind]), "arrays": arrays}).save(path)
    with pytest.raises(ValueError, match=r"is not the file of a cost model: .*limits"):
        load(kind, path)
    with pytest.raises(FileNotFoundError):
        load(kind, path.with_name("nowhere.npz"))


@pytest.mark.parametrize("train", [train_boosted, train_gnn])
def test_training_refuses_what_is_no_measurement(train: Any) -> None:
    with pytest.raises(ValueError, match="at least one measured group"):
        train([], **ABOUT)
    (group,) = training_groups(1)
    for bad in (0.0, -1.0, np.inf, np.nan):
        wrong = type(group)(features=group.features, roofline_us=1.0, measured_us=bad)
        with pytest.raises(ValueError, match="must be finite and > 0"):
            train([group, wrong], **ABOUT)


def test_equal_seeds_make_equal_files(tmp_path: Path) -> None:
    groups = training_groups(20)
    config = GnnConfig(num_layers=1, hidden=8, num_heads=2, dense=8, num_epochs=2)
    for name in ("one", "two"):
        train_gnn(groups, **ABOUT, config=config).save(tmp_path / f"gnn-{name}")
        train_boosted(groups, **ABOUT).save(tmp_path / f"xgboost-{name}")
    for kind in ("gnn", "xgboost"):
        one, two = (ModelFile.load(tmp_path / f"{kind}-{n}", kind).arrays for n in ("one", "two"))
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[name], two[name]) for name in one)


def test_what_training_did_not_see_is_called_unfamiliar(saved: Any) -> None:
    model = load(*saved)
    graph, group = chain(3, 16 * 1000)
    far, far_group = chain(40, 16)
    assert model.unfamiliarity(graph, [Group(ops=(0,), outputs=(0,))]).tolist() == [0.0]
    assert 0 <= model.unfamiliarity(graph, [group])[0] <= 1
    assert model.unfamiliarity(far, [far_group])[0] > 3


def test_the_most_doubtful_groups_are_worth_measuring(saved: Any) -> None:
    model = load(*saved)
    graph, whole = chain(40, 16)
    alone = Group(ops=(3,), outputs=(3,))
    pair = Group(ops=(0, 1), outputs=(1,))
    groups = [alone, pair, whole, pair]
    doubt = model.unfamiliarity(graph, groups) * model.predict(graph, groups)
    assert doubt[2] > doubt[1] == doubt[3] > doubt[0] == 0
    assert model.worth_measuring(graph, groups, 9) == (2, 1, 3)
    assert model.worth_measuring(graph, groups, 2) == (2, 1)


# The network: from DGL to flat weights.


def network(seed: int) -> tuple[GroupNetwork, np.ndarray]:
    """An untrained network with random biases too, and its shape."""
    import torch

    groups = training_groups(10)
    config = GnnConfig(num_layers=3, hidden=24, num_heads=4, dense=20)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = GroupNetwork(
            config,
            np.concatenate([item.features.nodes for item in groups]),
            np.stack([item.features.globals for item in groups]),
        ).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return made, np.array([3, 24, 4, 20], np.int32)


@pytest.mark.parametrize("seed", range(3))
def test_flat_weights_compute_what_dgl_computes(seed: int) -> None:
    import torch

    made, shape = network(seed)
    features = [item.features for item in training_groups(30, seed)]
    forked, _ = chain(4, 1600)
    features += read_features(forked, [Group(ops=(0, 2, 3), outputs=(0, 3))], DEVICE)
    with torch.no_grad():
        expected = made(*batch_graph(features)).numpy()
    actual = run_network(shape, made.flat_weights(), features)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_weights_must_fit_the_shape() -> None:
    made, shape = network(0)
    features = [item.features for item in training_groups(1)]
    flat = made.flat_weights()
    with pytest.raises(ValueError, match=f"has {len(flat)} weights, or .* got {len(flat) - 1}"):
        run_network(shape, flat[:-1], features)
    for bad in ([0, 24, 4, 20], [3, 24, 5, 20], [3, 24, 4, 0]):
        with pytest.raises(ValueError, match="a width that the heads divide"):
            run_network(np.array(bad, np.int32), flat, features)


def test_networks_of_an_ensemble_are_averaged() -> None:
    groups = training_groups(12)
    features = [item.features for item in groups]
    config = replace(CONFIG, num_epochs=2)
    one, other = (
        GnnCostModel(train_gnn(groups, **ABOUT, config=replace(config, seed=seed)))
        for seed in (0, 1)
    )
    both = GnnCostModel(train_gnn(groups, **ABOUT, config=replace(config, num_networks=2)))
    mean = (one.log_ratios(features) + other.log_ratios(features)) / 2
    np.testing.assert_allclose(both.log_ratios(features), mean, rtol=1e-6)
    assert not np.allclose(one.log_ratios(features), other.log_ratios(features))


def test_training_the_network_helps() -> None:
    groups = training_groups(40)
    features, targets = [item.features for item in groups], [item.log_ratio for item in groups]

    def loss(num_epochs: int) -> float:
        config = GnnConfig(num_layers=1, hidden=8, num_heads=2, dense=8, num_epochs=num_epochs)
        made = fit_network(groups, config, 0.3)
        outputs = run_network(np.array([1, 8, 2, 8], np.int32), made.flat_weights(), features)
        return float(np.mean((outputs - targets) ** 2))

    assert loss(40) < 0.2 * loss(1)


# The choice.


def test_auto_takes_the_first_model_that_is_there(
    files: dict[str, ModelFile], tmp_path: Path
) -> None:
    chosen = choose_cost_model("auto", DEVICE, folder=tmp_path)
    assert chosen.model.name == "roofline"
    assert f"no gnn: there is no {tmp_path}" in chosen.reason
    assert f"no xgboost: there is no {tmp_path}" in chosen.reason
    files["xgboost"].save(tmp_path / "xgboost.npz")
    chosen = choose_cost_model("auto", DEVICE, folder=tmp_path)
    assert chosen.model.name == "xgboost"
    assert "no gnn: there is no" in chosen.reason
    files["gnn"].save(tmp_path / "gnn.npz")
    assert choose_cost_model("auto", DEVICE, folder=tmp_path).model.name == "gnn"
    for name in ("roofline", "xgboost", "gnn"):
        assert choose_cost_model(name, DEVICE, folder=tmp_path).model.name == name


@pytest.mark.parametrize("broken", ["missing", "too new"])
def test_auto_without_dgl_takes_xgboost_and_says_why(
    broken: str, files: dict[str, ModelFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("xgboost", "gnn"):
        files[kind].save(tmp_path / f"{kind}.npz")
    monkeypatch.delitem(sys.modules, "disco_fuse.cost_model.gnn_training")
    monkeypatch.delitem(sys.modules, "dgl")
    if broken == "missing":
        monkeypatch.setitem(sys.modules, "dgl", None)
        reason = "no gnn: ModuleNotFoundError"
    else:
        (tmp_path / "dgl").mkdir()
        text = "raise FileNotFoundError('no libgraphbolt_pytorch_2.13.so')"
        (tmp_path / "dgl" / "__init__.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        reason = "no gnn: FileNotFoundError: no libgraphbolt_pytorch_2.13.so"
    chosen = choose_cost_model("auto", DEVICE, folder=tmp_path)
    assert chosen.model.name == "xgboost"
    assert reason in chosen.reason
    assert choose_cost_model("gnn", DEVICE, folder=tmp_path).model.name == "gnn"


def test_auto_does_not_hide_a_damaged_file(files: dict[str, ModelFile], tmp_path: Path) -> None:
    files["xgboost"].save(tmp_path / "xgboost.npz")
    (tmp_path / "gnn.npz").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"gnn\.npz is not the file of a cost model"):
        choose_cost_model("auto", DEVICE, folder=tmp_path)


def test_learned_models_do_not_price_a_gpu(files: dict[str, ModelFile], tmp_path: Path) -> None:
    gpu = replace(DEVICE, name="T4", library_convolutions=True)
    for kind in ("xgboost", "gnn"):
        files[kind].save(tmp_path / f"{kind}.npz")
        with pytest.raises(ValueError, match=f"'{kind}' is for processors; T4 needs roofline"):
            choose_cost_model(kind, gpu, folder=tmp_path)
    chosen = choose_cost_model("auto", gpu, folder=tmp_path)
    assert chosen.model.name == "roofline"
    assert "no gnn: T4 is no processor" in chosen.reason


def test_a_model_of_another_machine_says_so(files: dict[str, ModelFile], tmp_path: Path) -> None:
    files["gnn"].save(tmp_path / "gnn.npz")
    for name in ("gnn", "auto"):
        here = choose_cost_model(name, DEVICE, folder=tmp_path, environment="made up")
        assert "trained on" not in here.reason
        other = choose_cost_model(name, DEVICE, folder=tmp_path, environment="this machine")
        assert other.reason.endswith("; it was trained on 'made up', this is 'this machine'")


def test_the_package_has_a_place_for_trained_models() -> None:
    assert SHIPPED.is_dir()
    for path in SHIPPED.glob("*.npz"):
        assert ModelFile.load(path, path.stem).training["num_groups"] > 0
        assert path.stat().st_size < 2**20


def test_wrong_names_and_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no cost model 'oracle'; allowed: roofline, xgboost"):
        choose_cost_model("oracle", DEVICE)
    for kind in ("xgboost", "gnn"):
        with pytest.raises(FileNotFoundError):
            choose_cost_model(kind, DEVICE, folder=tmp_path)
