"""From a PyTorch model to a measured, jointly fused data-parallel run.

A byte-level GPT learns CPython's own documentation on two ranks of this machine. Its training step
is imported into Relax, profiled, searched for the best op fusion and tensor fusion together,
compiled, and run under mpirun beside the baselines and PyTorch DDP.

    python tutorials/quickstart.py [--ranks 2] [--steps 40] [--output build/demo]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from disco_fuse.baselines import baseline
from disco_fuse.compare import check_losses, compare, format_table, to_json
from disco_fuse.compare.trace import measured_trace
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import extract
from disco_fuse.frontend.optimizer import SGD
from disco_fuse.frontend.torch import training_step
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.generate import GenerateKernels
from disco_fuse.kernels.library import library_available, load_library
from disco_fuse.lower import lower
from disco_fuse.plan import write_plan
from disco_fuse.profile import ProfileDatabase, choose_generated, measure_device
from disco_fuse.profile.allreduce import profile_allreduce
from disco_fuse.profile.in_step import profile_in_step
from disco_fuse.search import search
from disco_fuse.simulate import schedule, simulate
from disco_fuse.target import host_target
from disco_fuse.workload import Workload
from disco_fuse.zoo.byte_gpt import ByteGPT, next_byte_loss, text_batches

BATCH = 8
CONTEXT = 128
BASELINES = ("none", "default", "ddp")


def byte_gpt() -> Workload:
    """What is trained; the ranks call this function too."""
    torch.manual_seed(0)
    model = ByteGPT(num_layers=4, width=256, num_heads=4, context=CONTEXT)
    return Workload(
        name="byte_gpt",
        model=model,
        loss=next_byte_loss,
        optimizer=SGD(lr=0.05, momentum=0.9),
        batches=lambda rank, world_size: text_batches(
            rank=rank, world_size=world_size, batch=BATCH, context=CONTEXT
        ),
    )


def progress_bar(description: str) -> tuple[tqdm, Callable[[int, int, str], None]]:
    """A bar on standard error, and the callback that moves it."""
    bar = tqdm(desc=description, file=sys.stderr, leave=False, dynamic_ncols=True)

    def update(done: int, total: int, name: str) -> None:
        bar.total = total
        bar.set_postfix_str(name[:30], refresh=False)
        bar.update(done - bar.n)

    return bar, update


def main() -> int:
    """Run the demo; the exit status is 1 if the losses disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks (default 2)")
    parser.add_argument("--steps", type=int, default=40, help="measured steps (default 40)")
    parser.add_argument("--output", type=Path, default=Path("build/demo"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begin:5.1f} s] {text}", flush=True)

    # 1. A plain torch.nn model, its loss and optimizer, and real text.
    workload = byte_gpt()
    num_parameters = sum(p.numel() for p in workload.model.parameters())
    say(f"{workload.name}: {num_parameters / 1e6:.2f} M parameters, batch {BATCH} x {CONTEXT}")

    # 2. Its training step in Relax, with one AllReduce per gradient.
    example = [torch.from_numpy(part) for part in workload.example_batch()]
    step = training_step(workload.model, example, loss=workload.loss, optimizer=workload.optimizer)
    target = host_target()
    library = library_available()
    if library:
        load_library()
    mod = lower(InsertAllReduce()(step.mod), target, library=library)
    say(f"training step imported: {len(step.gradient_names)} gradients")

    # 3. What the machine can do: matmuls as library call and generated, of which the faster is
    #    taken; every kernel, in a step that all ranks run; AllReduce between ranks that compute.
    device = measure_device(target)
    with ProfileDatabase(options.output / "profile.sqlite") as database:
        if library:
            bar, progress = progress_bar("choosing matmuls")
            chosen = choose_generated(mod, target, database, progress)
            bar.close()
            mod = GenerateKernels(chosen, target)(mod)
            say(f"generated kernels are faster for {len(chosen)} distinct matmuls and convolutions")
    extraction = extract(mod)
    graph = extraction.graph
    profile = profile_in_step(mod, extraction, target, options.ranks)
    say(f"profiled {graph.num_ops} ops")
    transport = profile_allreduce(options.ranks)
    cluster = ClusterSpec(
        name=f"{options.ranks} ranks of this machine over shared memory",
        world_size=options.ranks,
        device=device,
        allreduce=transport.allreduce,
        contention=profile.contention,
    )
    say(
        f"device: {device.bandwidth_gbps:.0f} GB/s, launch {device.launch_us:.2f} us; "
        f"AllReduce of 1 MiB beside compute: {cluster.allreduce.time_us(2**20):.0f} us, meanwhile "
        f"compute takes {cluster.contention:.2f} times as long"
    )

    # 4. Joint search for op and tensor fusion, started from the unfused graph and the baselines.
    cost_model = RooflineCostModel(device, profile.op_times_us)
    strategies = {name: baseline(name, mod, extraction) for name in (*BASELINES, "op_fusion")}
    result = search(
        graph,
        cost_model,
        cluster,
        SearchConfig.preset("full", seed=0, patience=10_000),
        initial=list(strategies.values()),
    )
    strategies = {name: strategies[name] for name in BASELINES} | {"disco_fuse": result.best}
    say(
        f"search: {result.num_candidates} candidates, makespan "
        f"{result.initial_makespan_us / 1e3:.2f} -> {result.makespan_us / 1e3:.2f} ms, "
        f"stopped by {result.stop_reason}"
    )

    # 5. One compiled step and one plan for each strategy.
    plans: dict[str, Path] = {}
    for name, unordered in strategies.items():
        strategy = schedule(graph, unordered, cost_model, cluster)
        timeline = simulate(graph, strategy, cost_model, cluster)
        plans[name] = options.output / "plans" / name
        write_plan(
            plans[name],
            name=name,
            model=workload.name,
            mod=mod,
            extraction=extraction,
            strategy=strategy,
            target=target,
            world_size=options.ranks,
            cost_model={"name": cost_model.name, "digest": cost_model.digest},
            predicted={
                "makespan_us": timeline.makespan_us,
                "exposed_us": timeline.exposed_us,
                "compute_us": timeline.compute_us,
                "allreduce_us": timeline.allreduce_us,
                "overlap": timeline.overlap,
            },
            names=(*step.input_names, *step.names),
        )
        trace = timeline.to_chrome_trace(graph, strategy)
        (options.output / f"simulated_{name}.trace.json").write_text(trace)
        say(f"built {name}")
    (options.output / "plan.json").write_bytes((plans["disco_fuse"] / "plan.json").read_bytes())

    # 6. All of them, and PyTorch DDP, one step in turn under mpirun.
    say(f"running {options.ranks} ranks over shared memory, where communication is nearly free")
    comparison = compare(
        f"{os.path.abspath(__file__)}:byte_gpt",
        plans,
        step.values,
        num_ranks=options.ranks,
        num_steps=options.steps,
    )

    # 7. The table, the report, the timelines.
    for name, ranks in comparison.timelines.items():
        (options.output / f"measured_{name}.trace.json").write_text(
            json.dumps(measured_trace(ranks))
        )
    report = to_json(workload.name, options.ranks, comparison.results)
    (options.output / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(format_table(comparison.results))
    print(f"written: {options.output}/report.json, plan.json, *.trace.json (open with Perfetto)")
    problems = check_losses(comparison.results)
    for problem in problems:
        print(f"ERROR: {problem}", file=sys.stderr)
    say("done" if not problems else "the losses disagree")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
