"""A plan: one folder with the compiled step and everything said about it.

plan.json   what was decided, for which module, by which cost model, with which versions
step.so     the compiled step that every rank loads
step.cubin  its GPU kernels as machine code, where nvcc was there to make it
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from disco_fuse import __version__
from disco_fuse.apply import apply
from disco_fuse.bindings import dtype_name, static_shape
from disco_fuse.build import build
from disco_fuse.config import UNCAPPED
from disco_fuse.cubin import write_cubin
from disco_fuse.extract import Extraction
from disco_fuse.graph import OpGraph
from disco_fuse.kernel_cache import USER_CACHE, KernelCache
from disco_fuse.kernels.library import is_library_convolution, is_library_matmul
from disco_fuse.needs import needs_of
from disco_fuse.strategy import Strategy

SCHEMA_VERSION = 2
PLAN_FILE = "plan.json"
DIGESTS = "digests"
"""Entry of plan.json with the SHA-256 of every other entry's JSON, so that edits are seen."""
STEP_FILE = "step.so"
CUBIN_FILE = "step.cubin"


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Name, shape and dtype of one input of the step."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything of plan.json.

    Attributes
    ----------
    name : str
        Of the strategy: "disco_fuse", "ddp", ...
    model, target : str
    world_size : int
        The world size it was optimised for.
    cost_model : dict
        ``name`` and ``digest`` of the model that priced the kernels.
    graph_digest : str
        Of the OpGraph; a strategy means nothing for another graph.
    strategy : dict
        What :meth:`Strategy.to_json` writes.
    num_inputs : int
        The first ``num_inputs`` of ``tensors`` are the batch; the rest is state, updated in place.
    tensors : tuple of TensorSpec
        Arguments of the step, in order.
    needs_blas : bool
        Whether the step calls the BLAS library of torch.
    num_kernels, num_allreduces : int
        Launches and AllReduces of one step, counted in the compiled module.
    predicted : dict
        ``makespan_us``, ``compute_us``, ``allreduce_us``, ``overlap`` of the simulation.
    step_sha256 : str
        Of step.so.
    versions : dict
        Package -> version.
    needs : dict
        What else must be there at load, see :func:`disco_fuse.needs.needs_of`.
    cubin_sha256 : str
        Of step.cubin, "" if there is none.
    """

    name: str
    model: str
    target: str
    world_size: int
    cost_model: Mapping[str, str]
    graph_digest: str
    strategy: Mapping[str, Any]
    num_inputs: int
    tensors: tuple[TensorSpec, ...]
    needs_blas: bool
    num_kernels: int
    num_allreduces: int
    predicted: Mapping[str, float]
    step_sha256: str
    versions: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    cubin_sha256: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """Hash of the whole plan; ranks compare it before the first step."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def strategy_for(self, graph: OpGraph) -> Strategy:
        """The strategy, re-applied without searching; ValueError if it is for another graph."""
        if graph.digest != self.graph_digest:
            raise ValueError(
                f"plan {self.name!r} is for another module: its graph is {self.graph_digest}, "
                f"this module's is {graph.digest}"
            )
        # What was built once may exceed the caps of a search.
        return Strategy.from_json(graph, json.dumps(self.strategy), limits=UNCAPPED)


def installed_versions() -> dict[str, str]:
    """Package -> version, of what decides what a plan is."""
    return {
        "disco-fuse": __version__,
        "apache-tvm": tvm.__version__,
        "apache-tvm-ffi": tvm_ffi.__version__,
    }


def write_plan(
    folder: Path,
    *,
    name: str,
    model: str,
    mod: tvm.IRModule,
    extraction: Extraction,
    strategy: Strategy,
    target: tvm.target.Target,
    world_size: int,
    cost_model: Mapping[str, str],
    predicted: Mapping[str, float],
    names: Sequence[str] | None = None,
    cache: KernelCache | None = USER_CACHE,
) -> Plan:
    """Apply ``strategy`` to the lowered ``mod``, compile it and write the plan folder.

    ``names`` are those by which values are given to the parameters of main, by default main's own.
    ``cache`` keeps compiled kernels for later plans, by default in the user's cache folder; None:
    everything is compiled anew and nothing is kept.
    """
    main = mod["main"]
    names = [param.name for param in main.params] if names is None else names
    built = build(apply(mod, extraction, strategy), target, cache)
    folder.mkdir(parents=True, exist_ok=True)
    step, cubin = folder / STEP_FILE, folder / CUBIN_FILE
    # A plan that was here stays whole until all of the new one has been made.
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary)
        built.executable.export_library(str(new / STEP_FILE))
        has_cubin = target.kind.name == "cuda" and write_cubin(
            built.executable, target, new / CUBIN_FILE, cache
        )
        (new / STEP_FILE).replace(step)
        if has_cubin:
            (new / CUBIN_FILE).replace(cubin)
        else:
            cubin.unlink(missing_ok=True)
    plan = Plan(
        name=name,
        model=model,
        target=str(target),
        world_size=world_size,
        cost_model=dict(cost_model),
        graph_digest=extraction.graph.digest,
        strategy=json.loads(strategy.to_json()),
        num_inputs=int(main.attrs["num_input"]),
        tensors=tuple(
            _tensor_spec(name, param.ty) for name, param in zip(names, main.params, strict=True)
        ),
        needs_blas=any(is_library_matmul(b.value) for b in extraction.bindings),
        num_kernels=built.num_kernels,
        num_allreduces=built.num_allreduces,
        predicted=dict(predicted),
        step_sha256=_sha256(step),
        versions=installed_versions(),
        needs=needs_of(
            target,
            has_cubin=has_cubin,
            has_convolutions=any(is_library_convolution(b.value) for b in extraction.bindings),
        ),
        cubin_sha256=_sha256(cubin) if has_cubin else "",
    )
    save_plan(folder, plan)
    return plan


def save_plan(folder: Path, plan: Plan) -> None:
    """Write plan.json, with a digest of every entry."""
    data = asdict(plan)
    data[DIGESTS] = _digests(data)
    temporary = folder / (PLAN_FILE + ".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / PLAN_FILE)


def load_plan(folder: Path) -> Plan:
    """Read and check a plan folder.

    A plan is code: load it only from where you would also run a program from.

    Raises
    ------
    ValueError
        A file is missing or damaged, the plan has another schema version, or plan.json was
        changed since it was written; the message names the entries.
    """
    path = folder / PLAN_FILE
    plan = read_plan(path)
    hashes = {STEP_FILE: plan.step_sha256}
    if plan.cubin_sha256:
        hashes[CUBIN_FILE] = plan.cubin_sha256
    for name, expected in hashes.items():
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{file} is missing")
        if _sha256(file) != expected:
            raise ValueError(f"{file} is not the file that {path} describes: its hash differs")
    return plan


def read_plan(path: Path) -> Plan:
    """Read and check a plan.json alone, without the files that it describes.

    Raises
    ------
    ValueError
        As :func:`load_plan`.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a plan: {error}") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {version}; this release reads {SCHEMA_VERSION}"
        )
    _check_unchanged(path, data, data.pop(DIGESTS, None))
    try:
        tensors = tuple(
            TensorSpec(name=t["name"], shape=tuple(t["shape"]), dtype=t["dtype"])
            for t in data.pop("tensors")
        )
        return Plan(tensors=tensors, **data)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a complete plan: {error}") from error


def _check_unchanged(path: Path, data: Mapping[str, Any], written: Any) -> None:
    """ValueError naming the entries that are not as ``save_plan`` wrote them."""
    names = {one.name for one in fields(Plan)}
    if not isinstance(written, dict) or set(written) != names:
        raise ValueError(f"{path} is not a complete plan: it has no digest of every entry")
    present = _digests(data)
    changed = sorted(name for name in names | set(data) if written.get(name) != present.get(name))
    if changed:
        raise ValueError(
            f"{path} was changed after it was written, in {', '.join(changed)}; make the plan "
            "again instead"
        )


def _digests(data: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        for name, value in data.items()
    }


def _tensor_spec(name: str, ty: relax.TensorType) -> TensorSpec:
    return TensorSpec(name=name, shape=static_shape(ty), dtype=dtype_name(ty))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
