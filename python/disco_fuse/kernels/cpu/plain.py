"""Rule `plain`: the loops of a kernel as they are, on one core; it never declines."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.tirx import ForKind


def plain(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its parallel loops run in order.

    Parameters
    ----------
    func
        Any PrimFunc.

    Returns
    -------
    tvm.tirx.PrimFunc
    """
    return func.with_body(serial(func.body))


def serial(statement: tirx.Stmt) -> tirx.Stmt:
    """The statement with its parallel loops run in order."""

    def change(node: tirx.For) -> tirx.For:
        if node.kind != ForKind.PARALLEL:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, ForKind.SERIAL, node.body)

    result: tirx.Stmt = tvm_ffi.structural_map(statement, [(tirx.For, change)])
    return result
