"""Compiles a module that :mod:`disco_fuse.apply` wrote into something a rank can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from disco_fuse.apply import START
from disco_fuse.bindings import is_op
from disco_fuse.bucket_memory import PlaceGradients
from disco_fuse.donate import DonateBuffers
from disco_fuse.kernels.analysis import num_nests
from disco_fuse.kernels.cpu import BUILD_CONFIG, ScheduleCPU
from disco_fuse.kernels.cuda import ScheduleCUDA
from disco_fuse.kernels.library import is_library_matmul


@dataclass(frozen=True, kw_only=True)
class BuiltStep:
    """A compiled training step.

    Attributes
    ----------
    executable : tvm.relax.VMExecutable
        ``main`` updates donated parameters in place and returns the other outputs.
    num_kernels : int
        Calls a step: generated kernels and library calls.
    num_allreduces : int
    num_launches : int
        What the calls start: loop nests on a CPU, kernels on a GPU, and library calls.
    """

    executable: Any
    num_kernels: int
    num_allreduces: int
    num_launches: int


def build(mod: tvm.IRModule, target: tvm.target.Target) -> BuiltStep:
    """Compile a module with fusion groups: FuseTIR, schedules, in-place updates, the Relax VM.

    Parameters
    ----------
    mod : tvm.IRModule
        As :func:`disco_fuse.apply.apply` returns it, lowered for the same kind of target.
    target : tvm.target.Target
        An LLVM target (``num-cores`` above 1 lets big kernels run in parallel), or one of
        :func:`disco_fuse.target.gpu_target`, for which neither GPU nor CUDA must be here: the
        result holds the kernels as source.

    Raises
    ------
    ValueError
        The target is of another kind, or is a GPU and the module calls libraries of the CPU.
    """
    lowered = schedule_step(mod, target)
    kernels, allreduces, launches = _count(lowered)
    # The setting is about the stack of CPU kernels; GPU kernels are built with TVM's defaults.
    config = BUILD_CONFIG if target.kind.name == "llvm" else {}
    with target, tvm.transform.PassContext(config=config):
        pipeline = vm_pipeline(place_gradients=target.kind.name == "llvm")
        executable = tvm.compile(lowered, target=target, relax_pipeline=pipeline)
    return BuiltStep(
        executable=executable,
        num_kernels=kernels,
        num_allreduces=allreduces,
        num_launches=launches,
    )


def schedule_step(
    mod: tvm.IRModule, target: tvm.target.Target, scheduler: tvm.transform.Pass | None = None
) -> tvm.IRModule:
    """The Relax half of :func:`build`: scheduled kernels, updates in place.

    ``scheduler`` replaces the pass that schedules kernels, to share its cache between steps.
    """
    schedulers = {"llvm": ScheduleCPU, "cuda": ScheduleCUDA}
    if target.kind.name not in schedulers:
        raise ValueError(f"target {target.kind.name!r} cannot be built; allowed: 'llvm', 'cuda'")
    if target.kind.name == "cuda":
        _check_no_host_library(mod)
    # The order of bindings carries meaning, so nothing here may move a packed call: that rules out
    # LegalizeOps' and FuseOps' rounds of TVM's default pipeline.
    passes = [
        # 1. groups become kernels
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        schedulers[target.kind.name](target) if scheduler is None else scheduler,
        # 2. values become buffers
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        DonateBuffers(),
    ]
    with target:
        return tvm.transform.Sequential(passes)(mod)


def _check_no_host_library(mod: tvm.IRModule) -> None:
    """ValueError when main calls the BLAS library, which reads the memory of the host."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if is_library_matmul(binding.value):
                raise ValueError(
                    f"{binding.var.name} calls the BLAS library of the CPU; for a GPU lower the "
                    "module with library=False"
                )


def vm_pipeline(*, place_gradients: bool = False) -> tvm.transform.Pass:
    """From a step with updates in place to what the code generator of the Relax VM reads.

    ``place_gradients``: whether gradients are computed in the memory of their buckets, which is the
    host's.
    """
    return tvm.transform.Sequential(
        [
            relax.transform.CallTIRRewrite(),
            *([PlaceGradients()] if place_gradients else []),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def _count(mod: tvm.IRModule) -> tuple[int, int, int]:
    """(calls, allreduces, launches) of one step."""
    kernels = allreduces = launches = 0
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            callee = value.op if isinstance(value, tvm.ir.Call) else None
            if isinstance(callee, relax.ExternFunc):
                allreduces += str(callee.global_symbol).startswith(START)
                continue
            if is_op(value, "relax.call_tir"):
                callee = value.args[0]
            if isinstance(callee, tvm.ir.GlobalVar):
                kernels += 1
                launches += num_nests(mod[callee])
            elif is_op(value, "relax.call_dps_packed"):
                kernels += 1
                launches += 1
    return kernels, allreduces, launches
