"""Look into a strategy: what the step waits for, what decisions gain, why others were not made.

A small GPT is tuned on a simulated cluster; nothing is built or run. The same answers are given by
`disco-fuse tune -O`, `disco-fuse show` and `disco-fuse explain`.

    python tutorials/inspect_strategy.py [--model gpt2_small] [--cluster 1gbit-cpu]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from disco_fuse import zoo
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.explain.gains import gains
from disco_fuse.explain.names import op_name, unit_name
from disco_fuse.explain.summary import summarise
from disco_fuse.explain.why import together, why_not
from disco_fuse.tuning import tune
from disco_fuse.tuning.choice import Choice, load_choice
from disco_fuse.tuning.importing import import_problem


def print_reasons(choice: Choice) -> None:
    """Some edges between kernels, and what is in the way of fusing them."""
    graph, home = choice.problem.graph, choice.strategy.group_of
    apart = [edge for edge in graph.edges if home[edge.producer] != home[edge.consumer]]
    for edge in apart[:: max(1, len(apart) // 4)]:
        print(together(choice, edge.producer, edge.consumer))
        for answer in why_not(choice, edge.producer, edge.consumer):
            print(f"  {answer.in_words()}")


def main() -> int:
    """Tune, and print what can be known of the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2_small", help="a model of the zoo")
    parser.add_argument("--cluster", default="1gbit-cpu", help="a preset or a TOML file")
    options = parser.parse_args()

    # 1. A strategy: which ops form a kernel, which gradients a bucket, and in which order.
    cluster = ClusterSpec.load(options.cluster)
    problem = import_problem(options.model, zoo.reference(options.model))
    graph = problem.graph
    result = tune(problem, cluster, SearchConfig.preset("full", max_steps=5_000))
    print(
        f"{problem.name}: {graph.num_ops} ops, {result.makespan_us / 1e3:.3f} ms on "
        f"{cluster.name}, the best baseline ({result.best_baseline.name}) takes "
        f"{result.best_baseline.makespan_us / 1e3:.3f}"
    )

    # 2. It can be kept with its graph and cluster, and looked at later.
    choice = Choice(
        problem=problem,
        strategy=result.strategy,
        cluster=cluster,
        simulated_us=result.makespan_us,
    )
    with tempfile.TemporaryDirectory() as folder:
        choice.save(Path(folder), {})
        choice = load_choice(Path(folder) / "strategy.json")

    # 3. What the step consists of, and what it waits for.
    summary = summarise(choice)
    print(
        f"{len(summary.kernels)} kernels, {summary.num_fused} of several ops; "
        f"{len(summary.buckets)} buckets; "
        f"{100 * summary.gap:.1f}% above the bound of all strategies"
    )
    for bucket in summary.buckets:
        if bucket.exposed_us > 0:
            print(
                f"  bucket {unit_name(graph, bucket.unit, 1)} of {bucket.num_bytes} bytes: exposed "
                f"for {bucket.exposed_us:.1f} us; ready at {bucket.ready_us:.1f} us with "
                f"{op_name(graph, bucket.last_gradient)}, at the end of "
                f"{len(bucket.chain)} kernels that need each other; "
                f"{bucket.not_needed_us:.1f} us of other work ran before"
            )

    # 4. Every decision undone alone in the simulator: what the step loses is what it gains. Equal
    # ones, of layers that repeat, are one finding.
    found = gains(choice)
    for kind, number in (("fusion", 5), ("bucket", 3), ("order", 3)):
        for finding in found.best(kind, number):
            times, first = len(finding.decisions), finding.decisions[0]
            print(f"  {kind}: {times} x {first.gain_us:8.3f} us for {first.what}")

    # 5. Why two ops that one reads from the other are not one kernel: a rule, or the time it costs.
    print_reasons(choice)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
