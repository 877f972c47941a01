"""How true the simulator is: many strategies of one model, simulated and measured.

baselines, the best, strategies near it, random ones
    -> simulated makespan --+
    -> measured step time --+--> error of each, order of all, where the largest errors come from
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from disco_fuse.compare.differences import differences
from disco_fuse.compare.driver import compare
from disco_fuse.compare.preparation import (
    CostModelChoice,
    Preparation,
    Say,
    baselines_and_best,
    build_plans,
    prepare,
)
from disco_fuse.compare.report import StrategyResult
from disco_fuse.profile.allreduce import RunRanks
from disco_fuse.simulate import Timeline, schedule
from disco_fuse.strategy import Strategy
from disco_fuse.testing import random_strategy

_NUM_WARMUP = 3
_TIMEOUT_S = 3600.0
# Where a strategy is off by more, the report names what differs.
_EXPLAINED_ABOVE = 0.10
_NEAR_THE_BEST = 0.15
# Of the strategies that are neither baseline nor best, those near the best: the order matters most
# where the search has to choose.
_SHARE_NEAR = 2 / 3
_NEAR_EDITS = (1, 2, 4, 8, 16)
_RANDOM_SHARES = (1 / 8, 1 / 4, 1 / 2, 1)
_TRIES = 20  # strategies drawn for one that is not there yet


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """What is measured; see :meth:`run`.

    Attributes
    ----------
    model, reference : str
        Its name in the report, and the workload.
    num_ranks : int
    link : str
        The rate, for the report.
    num_strategies : int
    num_steps : int
        Measured steps of every strategy.
    folder : Path
        For plans.
    run_ranks : callable
        Starts ranks on the link, with the signature of :func:`disco_fuse.launch.run`.
    cost_model : CostModelChoice
    seed : int
        Of the random strategies.
    """

    model: str
    reference: str
    num_ranks: int
    link: str
    num_strategies: int
    num_steps: int
    folder: Path
    run_ranks: RunRanks
    cost_model: CostModelChoice = field(default_factory=CostModelChoice)
    seed: int = 0

    def run(self, say: Say) -> dict[str, Any]:
        """All of it.

        Returns
        -------
        dict
            What :func:`judge` returns, and ``model``, ``world_size``, ``link``, ``cost_model``
            (with the reason why it is this one), ``differences`` by strategy.

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
        chosen = choose_strategies(
            prepared, baselines_and_best(prepared, say), self.num_strategies, self.seed
        )
        plans, timelines = build_plans(
            prepared, chosen, model=self.model, folder=self.folder, say=say
        )
        say(f"measure {len(plans)} strategies")
        comparison = compare(
            self.reference,
            plans,
            prepared.step.step.values,
            num_ranks=self.num_ranks,
            num_steps=self.num_steps,
            num_warmup=_NUM_WARMUP,
            ddp={},
            timeout_s=_TIMEOUT_S,
            run_ranks=self.run_ranks,
        )
        verdict = judge(comparison.results)
        return {
            "model": self.model,
            "world_size": self.num_ranks,
            "link": self.link,
            "cost_model": prepared.reason,
            **verdict,
            "differences": _explain(prepared, chosen, timelines, comparison.results, verdict),
        }


def choose_strategies(
    prepared: Preparation, known: Mapping[str, Strategy], num_strategies: int, seed: int
) -> dict[str, Strategy]:
    """The best, distinct baselines, strategies near the best, and random ones, by name.

    Parameters
    ----------
    known : mapping of str to Strategy
        Baselines, and the best as "disco_fuse".

    Returns
    -------
    dict of str to Strategy
        ``num_strategies`` of them, all different; fewer where the graph has no more.
    """
    graph = prepared.extraction.graph
    found: dict[str, Strategy] = {}
    seen: set[str] = set()

    def add(name: str, strategy: Strategy) -> bool:
        text = strategy.to_json()
        if len(found) == num_strategies or text in seen:
            return False
        seen.add(text)
        found[name] = strategy
        return True

    for name in ("disco_fuse", *(name for name in known if name != "disco_fuse")):
        add(name, known[name])
    free = num_strategies - len(found)
    for kind, number in (("near", round(_SHARE_NEAR * free)), ("random", free)):
        for index in range(number):
            for attempt in range(_TRIES):
                drawn = seed + 1000 * index + attempt
                if kind == "near":
                    edits, start = _NEAR_EDITS[index % len(_NEAR_EDITS)], known["disco_fuse"]
                else:
                    share = _RANDOM_SHARES[index % len(_RANDOM_SHARES)]
                    edits, start = max(1, int(share * graph.num_ops)), None
                strategy = random_strategy(graph, drawn, edits, start)
                listed = schedule(graph, strategy, prepared.cost_model, prepared.cluster)
                if add(f"{kind}_{index}", listed):
                    break
    return found


def judge(results: Sequence[StrategyResult]) -> dict[str, Any]:
    """Errors of simulated times, and whether their order is right.

    Parameters
    ----------
    results : sequence of StrategyResult
        Of our plans, whose steps were measured in turn.

    Returns
    -------
    dict
        ``mean_error``, ``max_error`` of the absolute errors; ``kendall_tau`` over the pairs whose
        measured order is certain, null without any; ``num_pairs``, ``num_pairs_left_out``;
        ``num_near_best``: strategies measured within 15% of the fastest; ``strategies``, each with
        ``name``, ``simulated_ms``, ``step_ms``, ``p10``, ``p90`` (ms), ``error`` (simulated over
        measured, less one).
    """
    rows = [_row(result) for result in results]
    errors = [abs(row["error"]) for row in rows]
    fastest = min(row["step_ms"] for row in rows)
    order = [_order(first, second) for first, second in combinations(results, 2)]
    certain = [agreement for agreement in order if agreement is not None]
    return {
        "mean_error": float(np.mean(errors)),
        "max_error": float(np.max(errors)),
        "kendall_tau": float(np.mean(certain)) if certain else None,
        "num_pairs": len(certain),
        "num_pairs_left_out": len(order) - len(certain),
        "num_near_best": sum(row["step_ms"] <= (1 + _NEAR_THE_BEST) * fastest for row in rows),
        "strategies": rows,
    }


def _row(result: StrategyResult) -> dict[str, Any]:
    assert result.makespan_us is not None, f"{result.name} was not simulated"
    time_us = result.step_time_us()
    return {
        "name": result.name,
        "simulated_ms": result.makespan_us / 1e3,
        "step_ms": time_us["median"] / 1e3,
        "p10": time_us["p10"] / 1e3,
        "p90": time_us["p90"] / 1e3,
        "error": result.makespan_us / time_us["median"] - 1,
    }


def _order(first: StrategyResult, second: StrategyResult) -> int | None:
    """1 where simulation and measurement put a pair in the same order, -1 in the other, 0 where
    the simulation sees no difference; None where the measurement does not tell.

    Steps of both were measured in turn, so the noise of a moment is in both: what counts are the
    differences of the steps of each round. By the sign test (Conover, "Practical Nonparametric
    Statistics", section 3.4) they must have one sign in more rounds than 95% of fair coins show.
    """
    assert first.makespan_us is not None
    assert second.makespan_us is not None
    rounds = np.sign(np.subtract(first.step_times_us, second.step_times_us))
    balance = float(rounds.sum())
    if abs(balance) <= 1.96 * np.sqrt(np.count_nonzero(rounds)):
        return None
    return int(np.sign(first.makespan_us - second.makespan_us) * np.sign(balance))


def _explain(
    prepared: Preparation,
    strategies: Mapping[str, Strategy],
    timelines: Mapping[str, Timeline],
    results: Sequence[StrategyResult],
    verdict: Mapping[str, Any],
) -> dict[str, Any]:
    """Largest differences of the strategies whose error is too large, by name."""
    return {
        result.name: [
            asdict(item)
            for item in differences(
                prepared.extraction.graph, strategies[result.name], timelines[result.name], result
            )
        ]
        for result, row in zip(results, verdict["strategies"], strict=True)
        if abs(row["error"]) > _EXPLAINED_ABOVE
    }
