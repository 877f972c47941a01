"""One model on one link: baselines, DisCoFuse and PyTorch DDP, built and measured side by side.

import -> profile on the link -> baselines (the better order of each), search -> one plan each
       -> all of them and PyTorch DDP, one step in turn -> limits of the plan found
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_fuse.baselines import evaluate_baselines
from disco_fuse.bound import lower_bound_us
from disco_fuse.compare.driver import Comparison, compare
from disco_fuse.compare.report import best_baseline
from disco_fuse.compare.spec import DdpOptions
from disco_fuse.compare.trace import measured_trace
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import Extraction, extract
from disco_fuse.fuse_ops import fuse_ops
from disco_fuse.graph import OpKind
from disco_fuse.kernels.generate import GenerateKernels
from disco_fuse.kernels.library import library_available, load_library
from disco_fuse.plan import write_plan
from disco_fuse.profile import ProfileDatabase, choose_generated, measure_device
from disco_fuse.profile.allreduce import RunRanks, profile_allreduce
from disco_fuse.profile.in_step import profile_in_step
from disco_fuse.search import search
from disco_fuse.simulate import Timeline, simulate
from disco_fuse.strategy import Strategy
from disco_fuse.target import host_target
from disco_fuse.tuning.importing import import_step

# PyTorch DDP at several bucket sizes, and compiled at its default one.
DDP: Mapping[str, DdpOptions] = {
    "pytorch_ddp_5mb": DdpOptions(bucket_cap_mb=5.0),
    "pytorch_ddp_25mb": DdpOptions(bucket_cap_mb=25.0),
    "pytorch_ddp_1000mb": DdpOptions(bucket_cap_mb=1000.0),
    "pytorch_ddp_compile": DdpOptions(bucket_cap_mb=25.0, compiled=True),
}
# A measured run has 12 strategies in turn; on a slow link a step of all takes seconds.
_NUM_WARMUP = 3
_TIMEOUT_S = 1500.0

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LinkBench:
    """What is measured.

    Attributes
    ----------
    model, reference : str
        Its name in the report, and the workload.
    num_ranks : int
    link : str
        The rate, for the report.
    num_steps : int
        Measured steps of every strategy.
    folder : Path
        For plans, profiles and ``disco_fuse.trace.json``, one step of the plan found.
    run_ranks : callable
        Starts ranks on the link, with the signature of :func:`disco_fuse.launch.run`.
    """

    model: str
    reference: str
    num_ranks: int
    link: str
    num_steps: int
    folder: Path
    run_ranks: RunRanks

    def run(self, say: Say) -> dict[str, Any]:
        """All of it; times of the result are milliseconds.

        Returns
        -------
        dict
            ``model``, ``world_size``, ``link``; ``step_time_ms`` by strategy (medians; null where
            PyTorch failed, with the reason in ``failed``); ``fo_ms``, ``fo_cpu_ms``, see
            :mod:`disco_fuse.compare.limits`; ``exposed_ms``, ``overhead_ms`` of DisCoFuse, see
            :class:`~disco_fuse.compare.report.Breakdown`; ``simulated_ms`` by strategy;
            ``simulated_exposed_ms``; ``lower_bound_ms``: no strategy has a shorter simulated step;
            ``best_baseline``; ``allreduces``; ``copied_bytes``;
            ``cluster``.

        Raises
        ------
        RuntimeError
            The ranks failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        say("import")
        step = import_step(self.reference)
        target = host_target()
        if library_available():
            load_library()
        say("choose matmuls")
        with ProfileDatabase(self.folder.parent / "profile.sqlite") as database:
            chosen = choose_generated(step.mod, target, database)
        mod = GenerateKernels(chosen, target)(step.mod)
        extraction = extract(mod)
        cost_model, cluster = self._profile(mod, extraction, say)
        strategies = _strategies(mod, extraction, cost_model, cluster, say)
        plans: dict[str, Path] = {}
        timelines: dict[str, Timeline] = {}
        for name, strategy in strategies.items():
            say(f"build {name}")
            timelines[name] = simulate(extraction.graph, strategy, cost_model, cluster)
            plans[name] = self.folder / "plans" / name
            write_plan(
                plans[name],
                name=name,
                model=self.model,
                mod=mod,
                extraction=extraction,
                strategy=strategy,
                target=target,
                world_size=self.num_ranks,
                cost_model={"name": cost_model.name, "digest": cost_model.digest},
                predicted={
                    "makespan_us": timelines[name].makespan_us,
                    "exposed_us": exposed_us(timelines[name]),
                },
                names=(*step.step.input_names, *step.step.names),
            )
        say("measure")
        comparison = compare(
            self.reference,
            plans,
            step.step.values,
            num_ranks=self.num_ranks,
            num_steps=self.num_steps,
            num_warmup=_NUM_WARMUP,
            ddp=DDP,
            limits_of="disco_fuse",
            gradient_bytes=gradient_bytes(extraction),
            timeout_s=_TIMEOUT_S,
            run_ranks=self.run_ranks,
        )
        trace = json.dumps(measured_trace(comparison.timelines["disco_fuse"]))
        (self.folder / "disco_fuse.trace.json").write_text(trace, encoding="utf-8")
        return {
            **self._report(comparison, timelines),
            "lower_bound_ms": lower_bound_us(extraction.graph, cost_model, cluster) / 1e3,
            "cluster": _describe(cluster),
        }

    def _profile(
        self, mod: Any, extraction: Extraction, say: Say
    ) -> tuple[RooflineCostModel, ClusterSpec]:
        """Kernels and AllReduce as they are on the link."""
        target = host_target()
        device = measure_device(target)
        say("profile kernels")
        times_us = profile_in_step(mod, extraction, target, self.num_ranks, self.run_ranks)
        say("profile AllReduce")
        transport = profile_allreduce(self.num_ranks, run_ranks=self.run_ranks)
        cluster = ClusterSpec(
            name=f"{self.num_ranks} ranks at {self.link}",
            world_size=self.num_ranks,
            device=device,
            allreduce=transport.allreduce,
            contention=transport.contention,
        )
        return RooflineCostModel(device, times_us), cluster

    def _report(self, comparison: Comparison, timelines: Mapping[str, Timeline]) -> dict[str, Any]:
        results = {result.name: result for result in comparison.results}
        medians = {name: r.step_time_us()["median"] / 1e3 for name, r in results.items()}
        ours = results["disco_fuse"].breakdown
        limits = comparison.limits
        assert ours is not None
        assert limits is not None
        return {
            "model": self.model,
            "world_size": self.num_ranks,
            "link": self.link,
            "step_time_ms": {name: medians.get(name) for name in (*timelines, *DDP)},
            "fo_ms": limits["fo_us"] / 1e3,
            "fo_cpu_ms": limits["fo_cpu_us"] / 1e3,
            "exposed_ms": ours.exposed_us / 1e3,
            "overhead_ms": ours.overhead_us / 1e3,
            "limits_us": dict(limits),
            "simulated_ms": {name: t.makespan_us / 1e3 for name, t in timelines.items()},
            "simulated_exposed_ms": exposed_us(timelines["disco_fuse"]) / 1e3,
            "best_baseline": best_baseline(comparison.results).name,
            "allreduces": {r.name: r.allreduces for r in comparison.results if r.allreduces},
            "copied_bytes": ours.copied_bytes,
            "losses": {name: result.losses[-1] for name, result in results.items()},
            "failed": dict(comparison.failed),
        }


def gradient_bytes(extraction: Extraction) -> int:
    """What all AllReduces of the graph send."""
    ops = extraction.graph.ops
    return sum(op.bytes_written for op in ops if op.kind == OpKind.ALLREDUCE)


def exposed_us(timeline: Timeline) -> float:
    """Time of a simulated step in which compute waits for a message, microseconds."""
    busy = [e.finish_ns - e.start_ns for e in timeline.events if e.stream == "compute"]
    return timeline.makespan_us - sum(busy) / 1e3


def _strategies(
    mod: Any,
    extraction: Extraction,
    cost_model: RooflineCostModel,
    cluster: ClusterSpec,
    say: Say,
) -> dict[str, Strategy]:
    """Every baseline in the better of both orders, and what the search finds."""
    say("search")
    graph = extraction.graph
    baselines = evaluate_baselines(graph, fuse_ops(mod, extraction), cost_model, cluster)
    strategies = {name: result.strategy for name, result in baselines.items()}
    config = SearchConfig.preset("full", seed=0)
    found = search(graph, cost_model, cluster, config, initial=list(strategies.values()))
    return {**strategies, "disco_fuse": found.best}


def _describe(cluster: ClusterSpec) -> dict[str, float]:
    return {
        "contention": cluster.contention,
        "allreduce_4kb_us": cluster.allreduce.time_us(4096),
        "allreduce_1mb_us": cluster.allreduce.time_us(2**20),
        "allreduce_16mb_us": cluster.allreduce.time_us(2**24),
    }
