"""One search in a process of its own, and a folder that remembers the ones that are done."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from disco_fuse import __version__
from disco_fuse.bench.exposed import exposed
from disco_fuse.bench.memory import peak_rss_bytes
from disco_fuse.config import ClusterSpec, SearchConfig
from disco_fuse.files import write_text
from disco_fuse.tuning import Problem, tune


@dataclass(frozen=True, kw_only=True)
class Run:
    """A search to be made.

    Attributes
    ----------
    label : str
        What the run is for: "full", "paper", "alpha=1.1", ...
    problem_file : str
        Where the problem lies.
    cluster : ClusterSpec
    config : SearchConfig
    warm_start : bool
        Whether the baselines join the search.
    """

    label: str
    problem_file: str
    cluster: ClusterSpec
    config: SearchConfig
    warm_start: bool = True


def run_search(run: Run) -> dict[str, Any]:
    """Make the search here; returns :meth:`TuningResult.to_json` and what the run has cost.

    Keys besides: ``label``, ``peak_rss_mb`` (10**6 bytes, of this process), ``exposed`` (see
    :func:`disco_fuse.bench.exposed.exposed`), ``strategy``.
    """
    problem = Problem.load(run.problem_file)
    result = tune(problem, run.cluster, run.config, warm_start=run.warm_start)
    return {
        **result.to_json(),
        "label": run.label,
        "peak_rss_mb": peak_rss_bytes() / 1e6,
        "exposed": exposed(problem.graph, result.strategy, result.timeline),
        "strategy": json.loads(result.strategy.to_json()),
    }


class RunStore:
    """Results of runs in a folder, one JSON file each; what is there is not searched again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "runs"

    def find(self, run: Run) -> dict[str, Any] | None:
        """The result of an equal run, if there is one."""
        path = self._path(run)
        if not path.exists():
            return None
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {**result, "label": run.label}

    def execute(self, run: Run) -> dict[str, Any]:
        """The result of an equal run, or of this one, in a process of its own.

        Raises
        ------
        BrokenProcessPool
            The process died.
        """
        known = self.find(run)
        if known is not None:
            return known
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            result = pool.submit(run_search, run).result()
        if result["stop_reason"] != "interrupted":
            path = self._path(run)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(result))  # never half a file, whenever this is stopped
        return result

    def _path(self, run: Run) -> Path:
        """Named by all that the result depends on: program, problem, cluster, configuration."""
        problem = hashlib.sha256(Path(run.problem_file).read_bytes()).hexdigest()
        key = [
            __version__,
            problem,
            asdict(run.cluster),
            asdict(run.config),
            run.warm_start,
        ]
        digest = hashlib.sha256(json.dumps(key, default=str).encode()).hexdigest()
        return self._folder / f"{digest[:24]}.json"
