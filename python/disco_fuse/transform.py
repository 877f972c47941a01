"""``relax.transform.DisCoFuse``: joint op fusion and tensor fusion as one Relax pass.

It stands where FuseOps stands. In: a training step or any other module whose main is one dataflow
block. Out: private functions with attribute ``Primitive`` for FuseTIR, bucketed AllReduces as
start/wait pairs, a fixed order.

    mod = tvm.transform.Sequential([DisCoFuse(), relax.transform.FuseTIR()])(mod)
"""

from __future__ import annotations

import logging

import tvm

from disco_fuse.adjoint import find_adjoint, put_back, take_out
from disco_fuse.allreduce import AllReduceModel
from disco_fuse.apply import apply
from disco_fuse.config import ClusterSpec, DeviceSpec, SearchConfig
from disco_fuse.cost_model import CostModel, RooflineCostModel
from disco_fuse.extract import extract
from disco_fuse.insert import InsertAllReduce
from disco_fuse.lower import lower
from disco_fuse.search import search

# Eight hosts of 16 cores on 10 Gbit/s Ethernet, from arithmetic rather than from a measurement:
# ring AllReduce sends 2 * 7/8 of the bytes at 1.25 GB/s, and a round of small TCP messages takes
# some 20 us.
DEFAULT_CLUSTER = ClusterSpec(
    name="8 hosts, 10 Gbit/s",
    world_size=8,
    device=DeviceSpec(
        name="16 cores",
        peak_gflops=500.0,
        bandwidth_gbps=100.0,
        launch_us=1.0,
        nest_us=0.1,
    ),
    allreduce=AllReduceModel.linear(latency_us=14 * 20.0, us_per_byte=2 * 7 / 8 / 1250.0),
)
DEFAULT_SEARCH = SearchConfig.preset("full", max_steps=20_000)
DEFAULT_TARGET = "llvm"

_logger = logging.getLogger(__name__)


def DisCoFuse(  # noqa: N802 - the name of a TVM pass
    *,
    cluster: ClusterSpec = DEFAULT_CLUSTER,
    cost_model: CostModel | None = None,
    search_config: SearchConfig = DEFAULT_SEARCH,
    target: tvm.target.Target | str | None = None,
    library: bool = False,
) -> tvm.transform.Pass:
    """Fuse ops and gradients jointly.

    Gradients are known where the attribute ``disco_fuse.gradients`` of main names them, or where
    ``R.ccl.allreduce`` calls are there already. Without any, this is an op-fusion pass.

    In a module of ``relax.transform.Gradient`` or ``relax.training.SetupTrainer`` it is the adjoint
    function that is optimised; what that returns as gradients is averaged. Other functions stay.

    Parameters
    ----------
    cluster : ClusterSpec
        Device and network to optimise for; by default :data:`DEFAULT_CLUSTER`.
    cost_model : CostModel, optional
        Prices fused kernels. By default the roofline of ``cluster.device``, which depends on
        nothing but the graph, so that a seed means the same plan on every machine.
    search_config : SearchConfig
        By default the preset "full", seed 0 and at most 20,000 candidates.
    target : Target or str, optional
        By default ``Target.current()``, and "llvm" where there is none.
    library : bool
        Call the BLAS library of torch for matmuls; the pass does not look whether it is there.

    Returns
    -------
    tvm.transform.Pass
        A module pass; the input module is not changed.

    Raises
    ------
    ValueError
        From the pass: main is not one dataflow block, has dynamic shapes or binds something else
        than kernels.
    """
    _require(cluster, ClusterSpec, "cluster")
    _require(search_config, SearchConfig, "search_config")
    if cost_model is not None:
        _require(cost_model, CostModel, "cost_model")
    if target is not None and not isinstance(target, tvm.target.Target):
        target = tvm.target.Target(target)

    def transform(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        name = find_adjoint(mod)
        if name is None:
            return optimise(mod)
        alone, adjoint = take_out(mod, name)
        return put_back(mod, optimise(alone), adjoint)

    def optimise(mod: tvm.IRModule) -> tvm.IRModule:
        used = target or tvm.target.Target.current(allow_none=True)
        used = used or tvm.target.Target(DEFAULT_TARGET)
        inserted = tvm.transform.Sequential([InsertAllReduce()])(mod)
        lowered = lower(
            inserted,
            used,
            library=library,
            library_convolutions=cluster.device.library_convolutions,
        )
        extraction = extract(lowered)
        model = cost_model or RooflineCostModel(cluster.device)
        result = search(extraction.graph, model, cluster, search_config)
        if result.stop_reason == "interrupted":
            raise KeyboardInterrupt
        _logger.info(
            "DisCoFuse: makespan %.0f -> %.0f us (%s)",
            result.initial_makespan_us,
            result.makespan_us,
            result.stop_reason,
        )
        return apply(lowered, extraction, result.best)

    return tvm.transform.module_pass(transform, opt_level=0, name="DisCoFuse")


def _require(value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")
