"""Train a byte-level GPT on several ranks, end in the middle, resume, and go back to PyTorch.

A small GPT learns CPython's own documentation. Its training step becomes a plan; ranks under mpirun
train the plan with `disco_fuse.Trainer`, which writes checkpoints. The first job ends after a third
of the steps, the second one resumes from its last checkpoint. The trained weights then go back into
the PyTorch model, which says how well it predicts text, and writes some.

    python tutorials/distributed_training.py [--ranks 2] [--steps 300] [--output build/training]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from disco_fuse import Trainer
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import extract
from disco_fuse.frontend.optimizer import AdamW, ClipGlobalNorm
from disco_fuse.frontend.torch import training_step, write_back
from disco_fuse.insert import InsertAllReduce
from disco_fuse.launch import run
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.runner import StepRunner
from disco_fuse.runtime import abort_on_error, loopback, mpi
from disco_fuse.search import search
from disco_fuse.simulate import simulate
from disco_fuse.target import host_target
from disco_fuse.trainer import Checkpoints, Cosine, EventLog, LinearWarmup
from disco_fuse.transform import DEFAULT_CLUSTER, DEFAULT_SEARCH
from disco_fuse.zoo.byte_gpt import ByteGPT, next_byte_loss, text_batches

BATCH = 8  # of each rank
CONTEXT = 64
WANTED_LOSS = 2.1  # nats per byte after 300 steps; guessing gives log(256) = 5.55


def byte_gpt() -> ByteGPT:
    """What is trained, with the weights it starts from."""
    torch.manual_seed(0)
    return ByteGPT(num_layers=2, width=64, num_heads=2, context=CONTEXT)


def make_plan(folder: Path, num_ranks: int) -> None:
    """Import the training step, search for op fusion and tensor fusion together, compile."""
    example = [torch.from_numpy(part) for part in next(text_batches(batch=BATCH, context=CONTEXT))]
    optimizer = ClipGlobalNorm(optimizer=AdamW(lr=5e-3, weight_decay=0.01), max_norm=1.0)
    step = training_step(byte_gpt(), example, loss=next_byte_loss, optimizer=optimizer)
    target = host_target()
    mod = lower(InsertAllReduce()(step.mod), target, library=False)
    extraction = extract(mod)
    # The quickstart measures this machine and the AllReduce of its ranks; here both are assumed.
    cost_model = RooflineCostModel(DEFAULT_CLUSTER.device)
    found = search(extraction.graph, cost_model, DEFAULT_CLUSTER, DEFAULT_SEARCH)
    timeline = simulate(extraction.graph, found.best, cost_model, DEFAULT_CLUSTER)
    write_plan(
        folder,
        name="disco_fuse",
        model="byte_gpt",
        mod=mod,
        extraction=extraction,
        strategy=found.best,
        target=target,
        world_size=num_ranks,
        cost_model={"name": cost_model.name, "digest": cost_model.digest},
        predicted={"makespan_us": timeline.makespan_us, "exposed_us": timeline.exposed_us},
        names=(*step.input_names, *step.names),
    )
    np.savez(folder / "values.npz", **dict(step.values))


def train_rank(output: Path, num_ranks: int, num_steps: int, until: int) -> None:
    """What every rank runs: train until so many steps of `num_steps` are done."""
    communicator = loopback() if num_ranks == 1 else mpi()
    with abort_on_error(communicator):
        with np.load(output / "plan" / "values.npz") as file:
            runner = StepRunner(output / "plan", communicator, dict(file))
        trainer = Trainer(
            runner,
            text_batches(
                batch=BATCH,
                context=CONTEXT,
                rank=communicator.rank,
                world_size=communicator.world_size,
            ),
            schedule=LinearWarmup(num_steps=20, then=Cosine(lr=5e-3, num_steps=num_steps)),
            checkpoints=Checkpoints(folder=output / "checkpoints", every=50),
            on_event=EventLog(output / f"events-rank-{communicator.rank}.jsonl"),
        )
        trainer.train(until)
        if communicator.rank == 0:
            np.savez(output / "trained.npz", **runner.values())
    communicator.close()


def read_losses(output: Path) -> list[float]:
    """The mean loss of the ranks after every step, from rank 0's events."""
    lines = (output / "events-rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["loss"] for event in map(json.loads, lines) if event["event"] == "step"]


def continue_text(model: ByteGPT, beginning: str, length: int) -> str:
    """Bytes after `beginning`, drawn from the model's predictions, the likely ones preferred."""
    tokens, generator = torch.tensor([list(beginning.encode())]), torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(length):
            probabilities = torch.softmax(model(tokens[:, -CONTEXT:])[:, -1] / 0.7, dim=-1)
            drawn = torch.multinomial(probabilities, 1, generator=generator)
            tokens = torch.cat([tokens, drawn], dim=1)
    return bytes(tokens[0].tolist()).decode(errors="replace")


def main() -> int:
    """Run the tutorial; the exit status is 1 if the model has not learned enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks (default 2)")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default 300)")
    parser.add_argument("--output", type=Path, default=Path("build/training"))
    parser.add_argument("--until", type=int, help=argparse.SUPPRESS)  # for the ranks
    options = parser.parse_args()
    if options.until is not None:
        train_rank(options.output, options.ranks, options.steps, options.until)
        return 0
    begin = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begin:5.1f} s] {text}", flush=True)

    # 1. The plan. An earlier run's checkpoints and events would be gone on with: begin anew.
    for old in (*options.output.glob("checkpoints/*"), *options.output.glob("events-*")):
        old.unlink()
    make_plan(options.output / "plan", options.ranks)
    say("plan written")

    # 2. Two jobs; the second one goes on where the first one stopped.
    for until in (options.steps // 3, options.steps):
        arguments = [os.path.abspath(__file__), "--ranks", str(options.ranks), "--steps"]
        arguments += [str(options.steps), "--output", str(options.output), "--until", str(until)]
        finished = run(arguments, options.ranks, timeout_s=600)
        if finished.returncode != 0:
            print("ERROR: the ranks failed", file=sys.stderr)
            return 1
        losses = read_losses(options.output)
        say(f"trained to step {len(losses)}: loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    # 3. Back to PyTorch.
    model = byte_gpt()
    with np.load(options.output / "trained.npz") as file:
        write_back(model, dict(file))
    model.eval()
    batch = next(text_batches(batch=64, context=CONTEXT, seed=1))
    tokens, targets = (torch.from_numpy(part) for part in batch)
    with torch.no_grad():
        loss = float(next_byte_loss(model(tokens), targets))
    say(f"in PyTorch the trained model's loss is {loss:.3f} nats per byte, at most {WANTED_LOSS}")
    print(continue_text(model, "The statement ", 60))
    return 0 if loss <= WANTED_LOSS else 1


if __name__ == "__main__":
    raise SystemExit(main())
