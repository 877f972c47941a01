"""``disco-fuse run`` before any rank starts: who is a rank, hosts, wrong calls, made-up values."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from disco_fuse.cli.main import main
from disco_fuse.cli.rank_environment import launched_by, read_hostfile
from disco_fuse.cli.synthetic import synthetic_batches, synthetic_values
from disco_fuse.plan import Plan, TensorSpec


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4", "SLURM_NTASKS": "8"}, ("Open MPI", 4)),
        ({"PMI_SIZE": "1"}, ("MPICH", 1)),
        ({"SLURM_STEP_NUM_TASKS": "8"}, ("Slurm", 8)),
        # A batch script and an interactive shell of Slurm are no ranks.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),
        ({"SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_who_is_a_rank(environment: dict[str, str], expected: object) -> None:
    assert launched_by(environment) == expected


def test_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two kinds\na slots=2\n\nb:3  # MPICH's form\nc\n")
    assert read_hostfile(path) == {"a": 2, "b": 3, "c": 1}
    for text, message in (
        ("a slots=x", "line 1: 'a slots=x'; allowed"),
        ("a\na", "line 2: 'a'"),
        ("a 2 3", "line 1"),
        ("a slots=0", "line 1"),
        ("# nobody", "names no host"),
    ):
        path.write_text(text)
        with pytest.raises(click.UsageError, match=message):
            read_hostfile(path)


def call(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["run", *words], env=env)


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["-n", "3"], {"OMPI_COMM_WORLD_SIZE": "4"}, "-n is 3, but Open MPI started 4 ranks"),
        (["--as-rank"], {}, "mpirun started, and it started none"),
        (["-n", "2", "--timeout", "0"], {}, "--timeout is 0.0; allowed: above 0"),
        (["-n", "2", "--start-timeout", "nan"], {}, "--start-timeout is nan"),
        (["-n", "99999"], {}, "-n is 99999; allowed: 1 to"),
        (["-n", "0"], {}, "0 is not in the range"),
        (["--steps", "0"], {}, "0 is not in the range"),
        (["--on-nan", "ignore"], {}, "'ignore' is not one of 'stop', 'skip'"),
    ],
)
def test_wrong_calls(words: list[str], env: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    result = call(str(tmp_path), *words, env=env)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_hostfile_is_not_for_ranks(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\n")
    env = {"OMPI_COMM_WORLD_SIZE": "1"}
    result = call(str(tmp_path), "--hostfile", str(hosts), env=env)
    assert result.exit_code == 2
    assert "--hostfile is for starting ranks, but Open MPI started this one" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("a slots=x\n", "line 1: 'a slots=x'"), ("a\n", "--hostfile is for two ranks")],
)
def test_hostfile_is_not_for_one_rank(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "hosts").write_text(text)
    result = call(str(tmp_path), "--hostfile", str(tmp_path / "hosts"))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_the_option_that_allows_more_ranks_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    assert "; --oversubscribe allows more ranks" in call(str(tmp_path), "-n", "99999").stderr


def test_folder_that_is_no_plan_and_data_that_is_none(tmp_path: Path) -> None:
    assert call(str(tmp_path)).exit_code == 2
    (tmp_path / "plan.json").write_text("{}")
    result = call(str(tmp_path))
    assert result.exit_code == 1
    assert "plan.json" in result.stderr
    assert call(str(tmp_path / "nothing")).exit_code == 2


def test_help_has_the_trust_note_and_the_exit_codes() -> None:
    text = " ".join(call("--help").stdout.split())
    assert "A plan folder is code, and is run" in text
    assert "143 ended by SIGTERM" in text
    assert "--as-rank" not in text


def spec(name: str, dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype)


PLAN = Plan(
    name="p", model="m", target="llvm", world_size=1, cost_model={}, graph_digest="", strategy={},
    num_inputs=3, needs_blas=False, num_kernels=1, num_allreduces=0, predicted={}, step_sha256="",
    tensors=(
        spec("x", "float32", 2, 3),
        spec("y", "int64", 50),
        spec("mask", "bool", 50),
        spec("layer.weight", "bfloat16", 40, 50),
        spec("norm.running_var", "float32", 3),
        spec("norm.num_batches_tracked", "int64"),
        spec("layer.weight.momentum", "float32", 40, 50),
        spec("optimizer.learning_rate", "float64"),
        spec("optimizer.step", "float64"),
        spec("rank", "uint32"),
    ),
)  # fmt: skip


def test_made_up_values_have_the_plans_shapes() -> None:
    values = synthetic_values(PLAN, 0)
    for tensor in PLAN.tensors[3:]:
        assert (values[tensor.name].shape, str(values[tensor.name].dtype)) == (
            tensor.shape,
            tensor.dtype,
        )
    assert 0.015 < values["layer.weight"].astype(np.float32).std() < 0.025
    assert (values["norm.running_var"] == 1).all()
    assert values["optimizer.learning_rate"] == 1e-3
    for name in ("layer.weight.momentum", "optimizer.step", "norm.num_batches_tracked", "rank"):
        assert not values[name].any()
    assert values["layer.weight"].tobytes() != synthetic_values(PLAN, 1)["layer.weight"].tobytes()


def test_made_up_batches_differ_between_steps_and_ranks() -> None:
    stream = synthetic_batches(PLAN, 0, 0)
    first, second = next(stream), next(stream)
    other = next(synthetic_batches(PLAN, 1, 0))
    assert [(part.shape, str(part.dtype)) for part in first] == [
        ((2, 3), "float32"),
        ((50,), "int64"),
        ((50,), "bool"),
    ]
    assert set(np.unique(first[1])) == {0, 1}
    assert (first[0] != second[0]).any()
    assert (first[0] != other[0]).any()
