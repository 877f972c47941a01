"""Choosing rules for a kernel and putting it together."""

from __future__ import annotations

import logging
from collections.abc import Callable

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.target import Target

from ..cpu.driver import IS_SCHEDULED, in_root_block
from ..cpu.loops import sequence
from ..cpu.operators import group
from ..cpu.scope import FlatBuffers
from ..stages import NUM_NESTS, parse, shape_of
from .context import DeviceKernel, Limits
from .nests import plan_launches
from .opaque import bound
from .verify import verify

logger = logging.getLogger(__name__)

Rule = Callable[[tirx.PrimFunc, Target], tirx.PrimFunc]


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """The loops of a kernel, on blocks and threads.

    Parameters
    ----------
    func
        A legalised operator, or a fusion group after `FuseTIR`.
    target
        A CUDA target with ``max_threads_per_block`` and ``max_shared_memory_per_block``.

    Returns
    -------
    tvm.tirx.PrimFunc
        The same function of the same buffers; ``disco_fuse.num_nests`` says how many kernels one
        call launches. The last rule serves what no other one could read.
    """
    limits = Limits.of(target)
    if any(0 in shape_of(buffer) for buffer in func.params if tirx.is_buffer_var(buffer)):
        return _empty(func)
    for name, rule in RULES:
        try:
            scheduled = rule(func, target)
            launches = len(verify([scheduled.body], limits))
        except Exception as reason:  # a guarded rule: TVM raises many types
            logger.debug("%s: passed over: %s", name, reason)
            continue
        logger.debug("%s: wrote a kernel of %d launches", name, launches)
        return scheduled.with_attrs({IS_SCHEDULED: True, NUM_NESTS: launches})
    raise AssertionError("the last rule wrote something that is no kernel")


def count_launches(func: tirx.PrimFunc, target: Target) -> int:
    """Kernels that one call of a PrimFunc launches; one that is not scheduled is scheduled first.

    The roofline prices as many: `disco_fuse.cost_model.num_nests`. It differs for groups with
    scatters, which TVM writes as two launches (a copy and the updates).
    """
    if not (func.attrs and NUM_NESTS in func.attrs):
        func = schedule(func, target)
    return int(func.attrs[NUM_NESTS])


def _by_nests(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """One launch per loop nest of the group."""
    stages = parse(func)
    plans = plan_launches(group(stages), stages)
    needed = set(stages.parameters).union(*(one.reads for one in plans))
    buffers = FlatBuffers(stages.intermediates)
    kernel = DeviceKernel(limits=Limits.of(target), needed=needed, buffers=buffers)
    body: list[tirx.Stmt] = []
    for one in plans:
        body.extend(one.emit(kernel))
    return func.with_body(in_root_block(sequence([*buffers.declarations, *body])))


def _dlight(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """dlight's Fallback: a thread per element, a launch per block that cannot be inlined."""
    with target:
        schedule = dlight.gpu.Fallback().apply(func, target, False)
    if schedule is None:
        raise ValueError("dlight's Fallback declines")
    return schedule.mod["main"]


def _one_thread(func: tirx.PrimFunc, _target: Target) -> tirx.PrimFunc:
    """Every top-level statement as it is, by one thread where it brings no launch."""
    body = func.body
    if not isinstance(body, s_tir.SBlockRealize) or body.block.name_hint != "root":
        return func.with_body(in_root_block(bound(body)))
    block = body.block
    own = s_tir.SBlock(
        [], [], [], "root", bound(block.body), None, block.alloc_buffers, block.match_buffers
    )
    return func.with_body(s_tir.SBlockRealize([], tvm.tirx.IntImm("bool", 1), own))


def _empty(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel of empty tensors: nothing to launch."""
    nothing = tirx.Evaluate(tirx.IntImm("int32", 0))
    return func.with_body(in_root_block(nothing)).with_attrs({IS_SCHEDULED: True, NUM_NESTS: 0})


RULES: tuple[tuple[str, Rule], ...] = (
    ("nests", _by_nests),
    ("dlight", _dlight),
    ("one_thread", _one_thread),
)
"""For a whole PrimFunc, best first."""
