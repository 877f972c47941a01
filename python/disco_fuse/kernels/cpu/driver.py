"""Choosing rules for a kernel and putting it together."""

from __future__ import annotations

import logging

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from ..stages import NUM_NESTS, parse, shape_of
from .context import Kernel, Machine
from .loops import sequence
from .nests import plan_nests
from .operators import group
from .plain import plain
from .scope import FlatBuffers
from .traffic import with_streams

logger = logging.getLogger(__name__)

IS_SCHEDULED = "tirx.is_scheduled"
RULES = "disco_fuse.cpu_rules"
"""Attribute of a scheduled kernel: the rule that wrote each nest, in order."""


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """The loops of a kernel, arranged for a CPU.

    Parameters
    ----------
    func
        A legalised operator, or a fusion group after `FuseTIR`.
    target
        An llvm target; ``mcpu`` decides the vector width, ``num-cores`` whether loops are
        split over threads.

    Returns
    -------
    tvm.tirx.PrimFunc
        The same function of the same buffers. What no rule can read is returned as it is.
    """
    machine = Machine.of(target)
    if any(0 in shape_of(buffer) for buffer in func.params):
        return plain(func)  # nothing to compute, and nothing a vector could be written to
    try:
        return _schedule(func, machine)
    except Exception as reason:  # the last rule never fails
        logger.debug("plain: served a kernel that no other rule could read: %s", reason)
        return plain(func)


def _schedule(func: tirx.PrimFunc, machine: Machine) -> tirx.PrimFunc:
    stages = parse(func)
    plans = plan_nests(group(stages), stages)
    needed = set(stages.parameters).union(*(one.reads for one in plans))
    buffers = FlatBuffers(stages.intermediates)
    kernel = Kernel(machine=machine, needed=needed, buffers=buffers)
    body: list[tirx.Stmt] = []
    rules: list[str] = []
    for one in plans:
        rule, nest = one.write(kernel)
        rules.append(rule)
        body.extend(nest)
    whole = sequence([*buffers.declarations, *body])
    if kernel.streamed:
        whole = with_streams(whole, kernel.streamed)
    scheduled = func.with_body(in_root_block(whole))
    num_nests = sum(one.num_nests for one in plans)
    return scheduled.with_attrs({IS_SCHEDULED: True, NUM_NESTS: num_nests, RULES: rules})


def in_root_block(body: tirx.Stmt) -> tirx.Stmt:
    """`body` in the outermost block that Relax expects around every function."""
    block = s_tir.SBlock([], [], [], "root", body)
    return s_tir.SBlockRealize([], tvm.tirx.IntImm("bool", 1), block)
