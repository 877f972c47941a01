"""Compiles a module that :mod:`disco_fuse.apply` wrote into something a rank can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build

from disco_fuse.apply import START
from disco_fuse.arena import Arena, place
from disco_fuse.bindings import is_op
from disco_fuse.bucket_memory import PlaceGradients
from disco_fuse.donate import DonateBuffers
from disco_fuse.kernel_cache import KernelCache
from disco_fuse.kernels.analysis import num_nests
from disco_fuse.kernels.cpu import BUILD_CONFIG, ScheduleCPU
from disco_fuse.kernels.cuda import ScheduleCUDA
from disco_fuse.kernels.library import is_library_convolution, is_library_matmul
from disco_fuse.objects import compile_kernels
from disco_fuse.plan_memory import PlanMemory, step_buffers


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
    num_compiled : int
        Kernels that were compiled for this step; with a cache, distinct ones that it had not.
    """

    executable: Any
    num_kernels: int
    num_allreduces: int
    num_launches: int
    num_compiled: int


def build(
    mod: tvm.IRModule, target: tvm.target.Target, cache: KernelCache | None = None
) -> BuiltStep:
    """Compile a module with fusion groups: FuseTIR, schedules, in-place updates, the Relax VM.

    Parameters
    ----------
    mod : tvm.IRModule
        As :func:`disco_fuse.apply.apply` returns it, lowered for the same kind of target.
    target : tvm.target.Target
        An LLVM target (``num-cores`` above 1 lets big kernels run in parallel), or one of
        :func:`disco_fuse.target.gpu_target`, for which neither GPU nor CUDA must be here: the
        result holds the kernels as source.
    cache : KernelCache, optional
        Kernels of a CPU that are in it are not compiled again, new ones are compiled in parallel
        and kept; running or exporting the step then needs a C++ compiler, which links. Without a
        cache LLVM gets all kernels at once. Results are the same bit for bit.

    Raises
    ------
    ValueError
        The target is of another kind, or is a GPU and the module calls libraries of the CPU.
    """
    lowered = schedule_step(mod, target)
    kernels, allreduces, launches = _count(lowered)
    if cache is None or target.kind.name != "llvm":
        executable, compiled = _compile_at_once(lowered, target), len(_prim_funcs(lowered))
    else:
        executable, compiled = _link(lowered, target, cache)
    return BuiltStep(
        executable=executable,
        num_kernels=kernels,
        num_allreduces=allreduces,
        num_launches=launches,
        num_compiled=compiled,
    )


def _compile_at_once(mod: tvm.IRModule, target: tvm.target.Target) -> Any:
    """An executable of TVM's own making."""
    # The setting is about the stack of CPU kernels; GPU kernels are built with TVM's defaults.
    config = BUILD_CONFIG if target.kind.name == "llvm" else {}
    with target, tvm.transform.PassContext(config=config):
        pipeline = vm_pipeline(place_gradients=target.kind.name == "llvm")
        return tvm.compile(mod, target=target, relax_pipeline=pipeline)


def _link(mod: tvm.IRModule, target: tvm.target.Target, cache: KernelCache) -> tuple[Any, int]:
    """An executable of object files, and the number of kernels that were not in the cache."""
    builder = relax.ExecBuilder()
    with target:
        rest = vm_build._vmcodegen(builder, vm_pipeline(place_gradients=True)(mod))
    objects = compile_kernels(_prim_funcs(rest), target, cache)
    executable = vm_build._vmlink(builder, target, ext_libs=list(objects.modules))
    return executable, objects.num_compiled


def _prim_funcs(mod: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    return {
        name.name_hint: func
        for name, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


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
    """ValueError when main calls a library of the CPU, which reads the memory of the host."""
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if is_library_matmul(binding.value) or is_library_convolution(binding.value):
                library = "BLAS library" if is_library_matmul(binding.value) else "convolutions"
                raise ValueError(
                    f"{binding.var.name} calls the {library} of the CPU; for a GPU lower the "
                    "module with library=False"
                )


def vm_pipeline(*, place_gradients: bool = False) -> tvm.transform.Pass:
    """From a step with updates in place to what the code generator of the Relax VM reads.

    ``place_gradients``: whether gradients are computed in the memory of their buckets, which is the
    host's.
    """
    return tvm.transform.Sequential(
        [
            *_allocation_passes(place_gradients),
            PlanMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def _allocation_passes(place_gradients: bool) -> list[tvm.transform.Pass]:
    """What gives every output of a kernel an allocation, or a place in its bucket."""
    placing = [PlaceGradients()] if place_gradients else []
    return [relax.transform.CallTIRRewrite(), *placing]


def step_arena(mod: tvm.IRModule, target: tvm.target.Target) -> Arena:
    """The memory that :func:`build` plans for a step; schedules and compiles nothing.

    Parameters
    ----------
    mod, target
        As for :func:`build`.
    """
    unscheduled = schedule_step(mod, target, tvm.transform.Sequential([]))
    passes = _allocation_passes(target.kind.name == "llvm")
    with target:
        allocated = tvm.transform.Sequential(passes)(unscheduled)
    return place(step_buffers(allocated["main"]).lifetimes)


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
