"""Steps without library calls are one file that TVM's runtime runs alone: no torch, none of us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from disco_fuse import zoo
from disco_fuse.baselines import baseline
from disco_fuse.extract import extract
from disco_fuse.frontend.torch import training_step
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.target import host_target

FEW = ("bert_small", "vgg19_small")  # of both kinds of heavy operators
SMALL = [
    name if name in FEW else pytest.param(name, marks=pytest.mark.slow)
    for name in zoo.models()
    if name.endswith("_small")
]
FULL = [name for name in zoo.models() if not name.endswith("_small")]
_PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
for name in ("torch", "disco_fuse", "mpi4py"):
    sys.modules[name] = None  # importing it raises
import tvm
folder = Path(sys.argv[1])
plan = json.loads((folder / "plan.json").read_text())
main = tvm.relax.VirtualMachine(
    tvm.runtime.load_module(str(folder / "step.so")), tvm.cpu()
)["main"]
if len(sys.argv) > 2:
    with np.load(sys.argv[2]) as file:
        arguments = [tvm.runtime.tensor(file[spec["name"]]) for spec in plan["tensors"]]
    print(json.dumps(float(main(*arguments)[0].numpy())))
"""


def _write(name: str, folder: Path) -> float:
    """Write a plan and the arguments of its first step; what eager PyTorch has for its loss."""
    workload = zoo.workload(name)
    example = workload.example_tensors()
    step = training_step(workload.model, example, loss=workload.loss, optimizer=workload.optimizer)
    mod = lower(step.mod, host_target(), library=False)
    extraction = extract(mod)
    names = (*step.input_names, *step.names)
    plan = write_plan(
        folder,
        name="default",
        model=name,
        mod=mod,
        extraction=extraction,
        strategy=baseline("default", mod, extraction),
        target=host_target(),
        world_size=1,
        cost_model={"name": "roofline", "digest": "d"},
        predicted={},
        names=names,
    )
    assert not plan.needs_blas
    assert plan.num_allreduces == 0
    batch = [part.numpy() for part in example]
    values = dict(zip(names, [*batch, *step.initial_values()], strict=True))
    np.savez(folder / "values.npz", **values)
    with torch.no_grad():
        return float(workload.loss(workload.model(*example[:-1]), example[-1]))


def _load(*arguments: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        env={**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SMALL)
def test_small_models_run_in_tvm_alone(name: str, tmp_path: Path) -> None:
    expected = _write(name, tmp_path)
    loss = json.loads(_load(tmp_path, tmp_path / "values.npz"))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_models_load_in_tvm_alone(name: str, tmp_path: Path) -> None:
    _write(name, tmp_path)
    _load(tmp_path)
