"""DisCoFuse as one pass among TVM's own, on a model that is written in Relax; no PyTorch anywhere.

    TVMScript -> SetupTrainer (loss, gradient, optimizer) -> DisCoFuse -> FuseTIR -> compile

SetupTrainer makes three functions: the model, `backbone_loss_adjoint` (loss and gradients) and
`optimizer`. DisCoFuse finds the adjoint, averages the gradients that it returns over all ranks,
and chooses fusion groups, gradient buckets and their order together. Two ranks under mpirun then
train on different halves of the data, and must hold equal parameters in the end.

    python tutorials/relax_pipeline.py [--ranks 2] [--steps 600] [--output build/relax_pipeline]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.relax.training import SetupTrainer
from tvm.relax.training.loss import MSELoss
from tvm.relax.training.optimizer import MomentumSGD
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from disco_fuse.config import SearchConfig
from disco_fuse.launch import run
from disco_fuse.runtime import Session, abort_on_error, loopback, mpi

BATCH, FEATURES, WIDTH = 32, 8, 64  # the batch is that of each rank
WANTED_LOSS = 0.05  # mean squared error; predicting the mean gives about 0.5


@I.ir_module
class Regression:
    """Two hidden layers; SetupTrainer reads how many arguments are parameters and states."""

    I.module_attrs({"param_num": 6, "state_num": 0})

    @R.function
    def backbone(
        x: R.Tensor((32, 8), "float32"),  # noqa: N805 - TVMScript, not a method
        w1: R.Tensor((8, 64), "float32"),
        b1: R.Tensor((64,), "float32"),
        w2: R.Tensor((64, 64), "float32"),
        b2: R.Tensor((64,), "float32"),
        w3: R.Tensor((64, 1), "float32"),
        b3: R.Tensor((1,), "float32"),
    ):
        with R.dataflow():
            hidden1 = R.tanh(R.add(R.matmul(x, w1), b1))
            hidden2 = R.tanh(R.add(R.matmul(hidden1, w2), b2))
            out = R.add(R.matmul(hidden2, w3), b3)
            R.output(out)
        return out


SHAPES = [(FEATURES, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH, 1), (1,)]


def trainer_module() -> tvm.IRModule:
    """The training step as TVM makes it."""
    prediction = relax.TensorType((BATCH, 1), "float32")
    setup = SetupTrainer(
        MSELoss(reduction="mean"), MomentumSGD(0.05, 0.9), [prediction] * 2, legalize=True
    )
    return setup(Regression)


def compile_step(mod: tvm.IRModule, file: Path) -> None:
    """The pipeline. Where FuseOps would stand stands DisCoFuse; what follows is TVM's."""
    fused = tvm.transform.Sequential(
        [
            relax.transform.DisCoFuse(search_config=SearchConfig.preset("full", max_steps=5_000)),
            relax.transform.FuseTIR(),
        ]
    )(mod)
    before = sum(isinstance(f, tvm.tirx.PrimFunc) for f in mod.functions.values())
    num_buckets = fused.script().count("allreduce_start")
    print(f"{before} different kernels before the pass")
    print(f"{num_buckets} gradient buckets for {len(SHAPES)} gradients after it")
    tvm.compile(fused, target="llvm").export_library(str(file))


def batches(rank: int, num_ranks: int):
    """This rank's part of an endless stream of points of one function."""
    rng = np.random.default_rng(0)
    direction = rng.standard_normal((FEATURES, 1))
    while True:
        points = rng.standard_normal((num_ranks, BATCH, FEATURES))
        values = np.sin(points @ direction)
        yield points[rank].astype("float32"), values[rank].astype("float32")


def train_rank(file: Path, num_ranks: int, num_steps: int) -> None:
    """What every rank runs."""
    communicator = loopback() if num_ranks == 1 else mpi()
    with abort_on_error(communicator):
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(file)), tvm.cpu())
        rng = np.random.default_rng(1)  # equal weights on all ranks
        weights = [
            rng.standard_normal(s) / np.sqrt(s[0]) if len(s) == 2 else np.zeros(s) for s in SHAPES
        ]
        parameters = tuple(tvm.runtime.tensor(w.astype("float32")) for w in weights)
        state = trainer_module().attrs["optim_state"]
        session = Session(communicator)
        losses = []
        data = batches(communicator.rank, communicator.world_size)
        for _, (points, values) in zip(range(num_steps), data, strict=False):
            x, y = tvm.runtime.tensor(points), tvm.runtime.tensor(values)
            with session.step():  # AllReduces of this step go to this session
                loss, gradients = machine["backbone_loss_adjoint"](x, *parameters, y)
            parameters, state = machine["optimizer"](parameters, gradients, state)
            losses.append(float(loss.numpy()))
        mine = [parameter.numpy() for parameter in parameters]
        everyone = communicator.allgather([losses[-1], *(p.sum().item() for p in mine)])
        if communicator.rank == 0:
            report(losses, everyone)
    communicator.close()


def report(losses: list[float], everyone: list[list[float]]) -> None:
    """Say what rank 0 knows; an error ends all ranks."""
    recent = float(np.mean(losses[-20:]))
    print(f"loss {losses[0]:.3f} -> {recent:.3f} after {len(losses)} steps", flush=True)
    if any(sums[1:] != everyone[0][1:] for sums in everyone):
        raise RuntimeError("the ranks hold different parameters")
    print(f"{len(everyone)} ranks hold equal parameters", flush=True)
    if recent > WANTED_LOSS:
        raise RuntimeError(f"the loss is {recent:.3f}, wanted at most {WANTED_LOSS}")


def main() -> int:
    """Run the tutorial; the exit status is 1 if the ranks fail."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks (default 2)")
    parser.add_argument("--steps", type=int, default=600, help="training steps (default 600)")
    parser.add_argument("--output", type=Path, default=Path("build/relax_pipeline"))
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # for the ranks
    options = parser.parse_args()
    file = options.output / "step.so"
    if options.rank:
        train_rank(file, options.ranks, options.steps)
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    compile_step(trainer_module(), file)
    arguments = [os.path.abspath(__file__), "--rank", "--ranks", str(options.ranks)]
    arguments += ["--steps", str(options.steps), "--output", str(options.output)]
    finished = run(arguments, options.ranks, timeout_s=300)
    if finished.returncode != 0:
        print("ERROR: the ranks failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
