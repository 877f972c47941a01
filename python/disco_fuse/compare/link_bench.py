"""One model on one link: baselines, DisCoFuse and PyTorch DDP, built and measured side by side.

import -> profile on the link -> baselines (the better order of each), search -> one plan each
       -> all of them and PyTorch DDP, one step in turn -> limits of the plan found
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disco_fuse.bound import lower_bound_us
from disco_fuse.compare.driver import Comparison, compare
from disco_fuse.compare.preparation import (
    CostModelChoice,
    Say,
    baselines_and_best,
    build_plans,
    prepare,
)
from disco_fuse.compare.report import best_baseline
from disco_fuse.compare.spec import DdpOptions
from disco_fuse.compare.trace import measured_trace
from disco_fuse.config import ClusterSpec
from disco_fuse.extract import Extraction
from disco_fuse.graph import OpKind
from disco_fuse.profile.allreduce import RunRanks
from disco_fuse.simulate import Timeline

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
    cost_model : CostModelChoice
        What the search believes.
    """

    model: str
    reference: str
    num_ranks: int
    link: str
    num_steps: int
    folder: Path
    run_ranks: RunRanks
    cost_model: CostModelChoice = field(default_factory=CostModelChoice)

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
            ``best_baseline``; ``allreduces``; ``copied_bytes``; ``cluster``; ``cost_model``, with
            the reason why it is this one.

        Raises
        ------
        RuntimeError
            The ranks failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        prepared = prepare(
            self.reference,
            num_ranks=self.num_ranks,
            link=self.link,
            database=self.folder.parent / "profile.sqlite",
            run_ranks=self.run_ranks,
            choice=self.cost_model,
            say=say,
        )
        strategies = baselines_and_best(prepared, say)
        plans, timelines = build_plans(
            prepared, strategies, model=self.model, folder=self.folder, say=say
        )
        say("measure")
        comparison = compare(
            self.reference,
            plans,
            prepared.step.step.values,
            num_ranks=self.num_ranks,
            num_steps=self.num_steps,
            num_warmup=_NUM_WARMUP,
            ddp=DDP,
            limits_of="disco_fuse",
            gradient_bytes=gradient_bytes(prepared.extraction),
            timeout_s=_TIMEOUT_S,
            run_ranks=self.run_ranks,
        )
        trace = json.dumps(measured_trace(comparison.timelines["disco_fuse"]))
        (self.folder / "disco_fuse.trace.json").write_text(trace, encoding="utf-8")
        graph, model = prepared.extraction.graph, prepared.cost_model
        bound_us = lower_bound_us(graph, model, prepared.cluster)
        return {
            **self._report(comparison, timelines),
            "lower_bound_ms": bound_us / 1e3,
            "cluster": _describe(prepared.cluster),
            "cost_model": prepared.reason,
        }

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
            "simulated_exposed_ms": timelines["disco_fuse"].exposed_us / 1e3,
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


def _describe(cluster: ClusterSpec) -> dict[str, float]:
    return {
        "contention": cluster.contention,
        "allreduce_4kb_us": cluster.allreduce.time_us(4096),
        "allreduce_1mb_us": cluster.allreduce.time_us(2**20),
        "allreduce_16mb_us": cluster.allreduce.time_us(2**24),
    }
