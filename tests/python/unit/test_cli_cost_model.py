"""The commands that train and evaluate cost models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from graphs import DEVICE
from measured_groups import HEADER, chain, measured_groups, op_samples

from disco_fuse.cli.main import main
from disco_fuse.cost_model import choose_cost_model
from disco_fuse.dataset import SampleFile
from disco_fuse.fuse_ops import Emission
from disco_fuse.tuning import Problem


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, arguments)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "samples.db"
    groups = measured_groups(40)
    with SampleFile(path, HEADER) as file:
        file.add(groups)
        file.add_ops(op_samples(groups))
    return path


def test_train_writes_models_that_auto_finds(samples: Path, tmp_path: Path) -> None:
    done = run("train-cost-model", str(samples), "-O", str(tmp_path), "--json", "-")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["num_groups"] == 40
    for name in ("xgboost", "gnn"):
        assert data["models"][name]["bytes"] == (tmp_path / f"{name}.npz").stat().st_size
    chosen = choose_cost_model("auto", DEVICE, folder=tmp_path)
    assert chosen.model.name == "gnn"
    graph, group = chain(3, 1600)
    assert chosen.model.predict(graph, [group])[0] > DEVICE.launch_us


def test_tune_searches_with_a_trained_model(samples: Path, tmp_path: Path) -> None:
    models, problem = tmp_path / "models", tmp_path / "problem.json"
    graph, _ = chain(6, 1600)
    Problem(name="chain", graph=graph, emission=Emission(groups=(), order=tuple(range(6)))).save(
        problem
    )
    trained = run("train-cost-model", str(samples), "-O", str(models), "--models", "xgboost")
    assert trained.exit_code == 0, trained.output
    tune = ("tune", "--problem", str(problem), "--max-steps", "50")
    here = ("--cluster", "1gbit-cpu", "--cost-models", str(models))
    done = run(*tune, *here, "--cost-model", "auto")
    assert done.exit_code == 0, done.output
    reason = "cost model xgboost: the first of gnn, xgboost, roofline; no gnn: there is no"
    assert f"{reason} {models}" in done.stdout
    assert "| kernels whose time was known " in done.stdout
    data = json.loads(run(*tune, *here, "--cost-model", "xgboost", "--json", "-").stdout)
    assert data["cost_model"] == "xgboost"
    assert 0 < data["memo_hit_rate"] < 1
    learned_us = data["disco_fuse_us"]
    data = json.loads(run(*tune, *here, "--json", "-").stdout)
    assert data["cost_model"] == "roofline"
    assert data["disco_fuse_us"] != learned_us
    missing = run(*tune, *here, "--cost-model", "gnn")
    assert missing.exit_code == 1
    assert "gnn.npz: No such file or directory" in missing.output
    gpu = run(*tune, "--cost-models", str(models), "--cost-model", "xgboost")
    assert gpu.exit_code == 1
    assert "cost model 'xgboost' is for processors; GTX 1080 Ti needs roofline" in gpu.output


def test_eval_states_errors_per_model_and_split(samples: Path, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("cost.json", "cost.png")]
    options = ["--models", "roofline,xgboost", "--folds", "3"]
    done = run("eval-cost-model", str(samples), *options, "--json", files[0], "--plot", files[1])
    assert done.exit_code == 0, done.output
    data = json.loads(Path(files[0]).read_text(encoding="utf-8"))
    for name in ("roofline", "xgboost"):
        assert data["models"][name].keys() == {"families", "leave_one_model_out"}
        for errors in data["models"][name].values():
            assert {"within_14", "within_10", "mape", "num_groups"} <= errors.keys()
            assert errors["num_groups"] == 40
        assert data["per_model"][name].keys() == {"model0", "model1", "model2"}
    assert data["noise"]["within_14"] == 1.0
    assert "| xgboost " in done.stdout
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["train-cost-model", "eval-cost-model"])
def test_bad_files_and_names_end_with_a_message(
    command: str, samples: Path, tmp_path: Path
) -> None:
    more = ["-O", str(tmp_path)] if command == "train-cost-model" else []
    done = run(command, str(tmp_path / "nowhere.db"), *more)
    assert done.exit_code == 2
    assert "nowhere.db' does not exist" in done.stderr
    (tmp_path / "bad.db").write_bytes(b"nonsense" * 1000)
    done = run(command, str(tmp_path / "bad.db"), *more)
    assert done.exit_code == 1
    assert "is not a file of samples" in done.stderr
    done = run(command, str(samples), "--models", "oracle", *more)
    assert done.exit_code == 2
    assert "'oracle' is none of " in done.stderr


def test_eval_says_what_cannot_be_cut(samples: Path) -> None:
    done = run("eval-cost-model", str(samples), "--models", "roofline", "--folds", "9999")
    assert done.exit_code == 2
    assert "--folds: 9999 folds of" in done.stderr
