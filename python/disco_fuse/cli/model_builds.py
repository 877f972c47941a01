"""Builds the steps of one model under many strategies for many GPUs; runs in a process of its own.

    workload -> lowered once -> strategy -> groups -> kernels --(signature not in the cache)--> nvcc

Kernels of equal signature are scheduled once in a process, and compiled once for each
architecture by whichever process meets them first: what came of it is kept on disk.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import tvm
import tvm_ffi
from tvm import tirx

from disco_fuse import kernels
from disco_fuse.apply import apply
from disco_fuse.baselines import baseline, baseline_names
from disco_fuse.build import schedule_step, vm_pipeline
from disco_fuse.config import AllReduceModel, ClusterSpec, DeviceSpec, SearchConfig
from disco_fuse.cost_model import RooflineCostModel
from disco_fuse.extract import Extraction, extract
from disco_fuse.files import write_text
from disco_fuse.insert import InsertAllReduce
from disco_fuse.kernels.analysis import num_nests
from disco_fuse.kernels.cuda import ScheduleCUDA
from disco_fuse.kernels.cuda.compile import build_each, find_nvcc
from disco_fuse.lower import lower
from disco_fuse.search import search
from disco_fuse.strategy import Strategy
from disco_fuse.target import gpu_target
from disco_fuse.testing import random_strategy
from disco_fuse.workload import load_workload

# H100 PCIe: 51.2 TFLOPS in float32 and 2 TB/s (NVIDIA's data sheet); a launch costs some 5 us, and
# so does every further loop nest of a group, which is a launch of its own. The network is ten
# times slower than memory. The figures decide which groups are tried, not whether they build.
_GPU = DeviceSpec(name="gpu", peak_gflops=51_200, bandwidth_gbps=2_000, launch_us=5.0, nest_us=5.0)
_CLUSTER = ClusterSpec(
    name="gpus",
    world_size=8,
    device=_GPU,
    allreduce=AllReduceModel.linear(latency_us=50.0, us_per_byte=1e-5),
)
_SEARCH_STEPS = 200


class Run(TypedDict):
    """One strategy of one model for one architecture.

    ``built`` and ``failed`` count distinct kernels; a step whose Relax half fails counts as one
    failure. ``compiled`` kernels were new to the cache; ``launches`` are those of the built ones.
    """

    model: str
    strategy: str
    target: str
    built: int
    failed: int
    reasons: list[str]
    compiled: int
    launches: int
    seconds: float


Job = tuple[str, str]
"""Strategy and architecture."""


def build_model(
    name: str,
    reference: str,
    jobs: Sequence[Job],
    cache: Path,
    report: Callable[[Run], None],
) -> None:
    """Build the step of the workload that ``reference`` names under all ``jobs``.

    Runs that the cache knows are not made again, but reported.
    """
    todo = []
    for strategy, arch in jobs:
        known = _run_file(cache, name, strategy, arch)
        if known.is_file():
            report(json.loads(known.read_text(encoding="utf-8")))
        else:
            todo.append((strategy, arch))
    if not todo:
        return
    mod = _lowered(reference)
    extraction = extract(mod)
    scheduled: dict[tvm_ffi.StructuralKey, tirx.PrimFunc] = {}
    for strategy, arch in todo:
        begin = time.perf_counter()
        run = _build(mod, extraction, (name, strategy, arch), cache, scheduled)
        run["seconds"] = round(time.perf_counter() - begin, 1)
        _write(_run_file(cache, name, strategy, arch), run)
        report(run)


def choose(name: str, mod: tvm.IRModule, extraction: Extraction) -> Strategy:
    """The strategy called ``name``: a baseline, "disco_fuse", or "random-" and a seed.

    Raises
    ------
    ValueError
        There is none of that name.
    """
    graph = extraction.graph
    if name == "disco_fuse":
        config = SearchConfig(max_steps=_SEARCH_STEPS)
        return search(graph, RooflineCostModel(_GPU), _CLUSTER, config).best
    kind, separator, seed = name.partition("-")
    if kind == "random" and separator and seed.isdigit():
        return random_strategy(graph, int(seed))
    if name not in baseline_names():
        allowed = ("disco_fuse", "random-SEED", *baseline_names())
        raise ValueError(f"no strategy {name!r}; allowed: {', '.join(allowed)}")
    return baseline(name, mod, extraction)


def code_digest() -> str:
    """Of everything that decides what a kernel becomes: our schedules, TVM, and nvcc's presence."""
    text = hashlib.sha256(f"{tvm.__version__} {find_nvcc() is not None}".encode())
    folder = Path(next(iter(kernels.__path__)))
    for path in sorted(folder.rglob("*.py")):
        text.update(path.read_bytes())
    return text.hexdigest()[:16]


def _lowered(reference: str) -> tvm.IRModule:
    """The training step of a workload, without library calls."""
    # Needs torch, which the rest of the command line does without.
    from disco_fuse.frontend.torch import training_step

    workload = load_workload(reference)
    example = workload.example_tensors()
    step = training_step(workload.model, example, loss=workload.loss, optimizer=workload.optimizer)
    return lower(
        tvm.transform.Sequential([InsertAllReduce()])(step.mod), gpu_target(), library=False
    )


def _build(
    mod: tvm.IRModule,
    extraction: Extraction,
    names: tuple[str, str, str],
    cache: Path,
    scheduled: dict[tvm_ffi.StructuralKey, tirx.PrimFunc],
) -> Run:
    """One run, of (model, strategy, architecture); its time is not known yet."""
    model, strategy, arch = names
    target = gpu_target(arch)
    run = Run(
        model=model,
        strategy=strategy,
        target=arch,
        built=0,
        failed=1,
        reasons=[],
        compiled=0,
        launches=0,
        seconds=0.0,
    )
    try:
        fused = apply(mod, extraction, choose(strategy, mod, extraction))
        step = schedule_step(fused, target, ScheduleCUDA(target, scheduled))
        with target:
            vm_pipeline()(step)
    except Exception as error:  # a step that cannot be built is a result
        run["reasons"] = [f"step: {type(error).__name__}: {str(error).strip()[-400:]}"]
        return run
    distinct: dict[str, tirx.PrimFunc] = {}
    for _, func in step.functions_items():
        if isinstance(func, tirx.PrimFunc):
            distinct.setdefault(_signature(func), func)
    folder = cache / "kernels" / arch
    new = {key: func for key, func in distinct.items() if not (folder / key).is_file()}
    named = {f"k{key}": func for key, func in new.items()}
    for key, reason in build_each(named, target, find_nvcc()).items():
        _write(folder / key.removeprefix("k"), {"reason": reason})
    reasons = [json.loads((folder / key).read_text(encoding="utf-8"))["reason"] for key in distinct]
    run["failed"] = sum(1 for reason in reasons if reason)
    run["built"] = len(distinct) - run["failed"]
    run["reasons"] = sorted({reason for reason in reasons if reason})
    run["compiled"] = len(new)
    run["launches"] = sum(num_nests(func) for func in distinct.values())
    return run


def _signature(func: tirx.PrimFunc) -> str:
    plain = func.without_attr("global_symbol")
    return f"{tvm_ffi.structural_hash(plain) & (2**64 - 1):016x}"


def _run_file(cache: Path, name: str, strategy: str, arch: str) -> Path:
    return cache / "runs" / f"{name.replace('/', '_')}-{strategy}-{arch}.json"


def _write(path: Path, data: Any) -> None:
    """Write a file that another process sees whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(data))
