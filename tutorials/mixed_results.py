"""When fusion hurts: BERT-base, where less compute or fewer messages can mean a slower step.

Op fusion saves compute, but a bigger kernel may hand out its gradient later. Tensor fusion saves
latency, but a bigger message starts later. On a slow network this program simulates BERT-base under
the usual rules, looks for single fusions that save compute and still lengthen the step, and for
buckets that would better be others. Nothing is built or run.

    python tutorials/mixed_results.py
"""

from __future__ import annotations

from dataclasses import replace

from disco_fuse import zoo
from disco_fuse.baselines import evaluate_baselines
from disco_fuse.config import AllReduceModel, ClusterSpec, SearchConfig
from disco_fuse.cost_model import Group, predict_checked
from disco_fuse.explain.effects import edit_effects
from disco_fuse.explain.gains import gains
from disco_fuse.explain.names import op_name
from disco_fuse.search import search
from disco_fuse.simulate import schedule, simulate
from disco_fuse.strategy import Edit, Strategy, replay
from disco_fuse.tuning.choice import Choice
from disco_fuse.tuning.importing import import_problem

# What the paper's figures ask for on the Transformer, seconds per GB; see clusters/cluster-a.toml.
SLOW = AllReduceModel.linear(latency_us=290.0, us_per_byte=2.2e-3)


def total_us(choice: Choice, strategy: Strategy) -> float:
    """All kernels of a strategy one after the other, microseconds."""
    graph = choice.problem.graph
    units = [unit for unit in strategy.units(graph) if unit.kind != "bucket"]
    groups = [Group(ops=unit.ops, outputs=unit.outputs) for unit in units]
    return float(predict_checked(choice.cost_model, graph, groups).sum())


def op_fusion_that_hurts(tvm: Choice) -> None:
    """Print pairs of kernels that TVM leaves apart and that would make the step longer as one.

    They save compute, or cost none, but a gradient or an update has to wait for more.
    """
    graph, home = tvm.problem.graph, tvm.strategy.group_of
    pairs = {
        (int(home[edge.producer]), int(home[edge.consumer])): edge
        for edge in graph.edges
        if home[edge.producer] != home[edge.consumer] and not edge.order_only
    }
    edits = [
        Edit(kind="fuse", producer=edge.producer, consumer=edge.consumer) for edge in pairs.values()
    ]
    effects = [effect for effect in edit_effects(tvm, edits) if not effect.reason]
    hurting = sorted((e for e in effects if e.change_us >= 1), key=lambda e: -e.change_us)
    print(
        f"\n{len(effects)} more fusions are legal; {len(hurting)} of them lengthen the step by "
        "1 us or more, these although they cost no compute:"
    )
    before_us = total_us(tvm, tvm.strategy)
    for effect in hurting:
        more_us = total_us(tvm, replay(graph, [effect.edit], tvm.strategy)) - before_us
        if round(more_us, 3) <= 0:
            names = [op_name(graph, op) for op in (effect.edit.producer, effect.edit.consumer)]
            print(
                f"  {' with '.join(names)}: compute {more_us:+.1f} us, "
                f"step {effect.change_us:+.1f} us"
            )


def main() -> int:
    """Print the rules side by side, and the single decisions that hurt."""
    cluster = replace(ClusterSpec.preset("cluster-a"), allreduce=SLOW, links=None)
    problem = import_problem("bert", zoo.reference("bert"), library_convolutions=True)
    graph = problem.graph
    start = Choice(
        problem=problem, strategy=Strategy.unfused(graph), cluster=cluster, simulated_us=0.0
    )
    model = start.cost_model

    # 1. The rules. op_fusion is the compute of 'none' less a sixth; 'single' sends least often.
    baselines = evaluate_baselines(graph, problem.emission, model, cluster)
    print("rule             kernels   messages   compute ms   AllReduce ms   step ms")
    for name, baseline in baselines.items():
        timeline = simulate(graph, baseline.strategy, model, cluster)
        messages = sum(event.stream == "communication" for event in timeline.events)
        print(
            f"{name:16} {len(timeline.events) - messages:7} {messages:10} "
            f"{timeline.compute_us / 1e3:12.1f} {timeline.allreduce_us / 1e3:14.1f} "
            f"{timeline.makespan_us / 1e3:9.1f}"
        )

    # 2. Op fusion alone.
    listed = schedule(graph, baselines["op_fusion"].strategy, model, cluster)
    op_fusion_that_hurts(replace(start, strategy=listed))

    # 3. Tensor fusion: single cuts and joins of XLA's buckets that would make the step shorter.
    xla = replace(start, strategy=schedule(graph, baselines["default"].strategy, model, cluster))
    better = [d for d in gains(xla).decisions if d.kind == "bucket" and d.gain_us < 0]
    print(f"\n{len(better)} decisions of XLA's combiner hurt, most of all:")
    for decision in sorted(better, key=lambda d: d.gain_us)[:3]:
        print(f"  {decision.what}: {-decision.gain_us / 1e3:.1f} ms")

    # 4. Chosen together.
    starts = [baseline.strategy for baseline in baselines.values()]
    config = SearchConfig.preset("full", max_steps=5_000)
    found = search(graph, model, cluster, config, initial=starts)
    best_us = min(baseline.makespan_us for baseline in baselines.values())
    print(
        f"\nthe best rule takes {best_us / 1e3:.1f} ms; fusion of ops and of tensors chosen "
        f"together {found.makespan_us / 1e3:.1f}; no strategy less than "
        f"{found.lower_bound_us / 1e3:.1f}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
