"""Compiles a module that :mod:`disco_fuse.apply` wrote into something a rank can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from disco_fuse.apply import START
from disco_fuse.bindings import is_op
from disco_fuse.donate import DonateBuffers
from disco_fuse.kernels.cpu import BUILD_CONFIG, ScheduleCPU


@dataclass(frozen=True, kw_only=True)
class BuiltStep:
    """A compiled training step.

    Attributes
    ----------
    executable : tvm.relax.VMExecutable
        ``main`` updates donated parameters in place and returns the other outputs.
    num_kernels : int
        Launches a step: generated kernels and library calls.
    num_allreduces : int
    """

    executable: Any
    num_kernels: int
    num_allreduces: int


def build(mod: tvm.IRModule, target: tvm.target.Target) -> BuiltStep:
    """Compile a module with fusion groups: FuseTIR, schedules, in-place updates, the Relax VM.

    Parameters
    ----------
    mod : tvm.IRModule
        As :func:`disco_fuse.apply.apply` returns it.
    target : tvm.target.Target
        An LLVM target. ``num-cores`` above 1 lets big kernels run in parallel.
    """
    if target.kind.name != "llvm":
        raise ValueError(f"target {target.kind.name!r} cannot be built yet; allowed: 'llvm'")
    # The order of bindings carries meaning, so nothing here may move a packed call: that rules out
    # LegalizeOps' and FuseOps' rounds of TVM's default pipeline.
    passes = [
        # 1. groups become kernels
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        ScheduleCPU(),
        # 2. values become buffers
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        DonateBuffers(),
    ]
    with target:
        lowered = tvm.transform.Sequential(passes)(mod)
        kernels, allreduces = _count(lowered["main"])
        with tvm.transform.PassContext(config=BUILD_CONFIG):
            executable = tvm.compile(lowered, target=target, relax_pipeline=_vm_pipeline())
    return BuiltStep(executable=executable, num_kernels=kernels, num_allreduces=allreduces)


def _vm_pipeline() -> tvm.transform.Pass:
    return tvm.transform.Sequential(
        [
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )


def _count(main: relax.Function) -> tuple[int, int]:
    """(launches, allreduces) of one step."""
    kernels = allreduces = 0
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            callee = value.op if isinstance(value, tvm.ir.Call) else None
            if isinstance(callee, relax.ExternFunc):
                allreduces += str(callee.global_symbol).startswith(START)
            elif isinstance(callee, tvm.ir.GlobalVar):
                kernels += 1
            else:
                kernels += is_op(value, "relax.call_tir") or is_op(value, "relax.call_dps_packed")
    return kernels, allreduces
