"""From three strided views to the integers of one library matmul.

The library multiplies plain matrices, so M, N and K must each be one (size, stride) pair in both
tensors that have them, and each matrix must be row-major or column-major. Batch dimensions may be
as torn as they like; those that merely continue M or N are given to the matrix, since one large
product is faster than many small ones:

    (B, T, D) x (D, N)    batch [B], b repeats (stride 0)   ->   one (B*T, D) x (D, N)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from disco_fuse.kernels.library.views import (
    CommonFactor,
    Factor,
    StridedView,
    broadcast_to,
    common_factors,
    joined_common,
)

MAX_BATCH_DIMS = 8
"""As in src/kernels/gemm.h."""
MAX_INT32 = 2**31 - 1
"""Sizes and leading dimensions reach BLAS as 32-bit integers."""


@dataclass(frozen=True, kw_only=True)
class Operand:
    """Where one matrix of the batch lies in its tensor, in elements."""

    offset: int
    row_stride: int
    col_stride: int
    batch_strides: tuple[int, ...]

    def to_ints(self) -> list[int]:
        """Its part of :meth:`GemmPlan.to_ints`."""
        return [self.offset, self.row_stride, self.col_stride, *self.batch_strides]


@dataclass(frozen=True, kw_only=True)
class GemmPlan:
    """A batch of products C (m x n) = A (m x k) B (k x n)."""

    m: int
    n: int
    k: int
    batch_shape: tuple[int, ...]
    a: Operand
    b: Operand
    c: Operand

    @property
    def num_matrices(self) -> int:
        """Number of products."""
        return math.prod(self.batch_shape)

    def to_ints(self) -> tuple[int, ...]:
        """The integer form that ``disco_fuse.kernels.matmul`` reads.

        ``num_batch_dims, m, n, k, batch_shape...`` and then, for a, b and c,
        ``offset, row_stride, col_stride, batch_strides...``: 13 + 4 * num_batch_dims in all.
        """
        head = [len(self.batch_shape), self.m, self.n, self.k, *self.batch_shape]
        return tuple(head + self.a.to_ints() + self.b.to_ints() + self.c.to_ints())

    @staticmethod
    def from_ints(ints: Sequence[int]) -> GemmPlan:
        """The inverse of :meth:`to_ints`.

        Raises
        ------
        ValueError
            If the number of integers does not match their first one.
        """
        num_batch = ints[0] if ints else 0
        if len(ints) != 13 + 4 * num_batch:
            raise ValueError(
                f"a matmul with {num_batch} batch dimensions takes {13 + 4 * num_batch} integers, "
                f"got {len(ints)}"
            )
        _, m, n, k, *rest = ints
        width = 3 + num_batch
        operands = [rest[num_batch + i * width :][:width] for i in range(3)]
        a, b, c = (
            Operand(offset=o[0], row_stride=o[1], col_stride=o[2], batch_strides=tuple(o[3:]))
            for o in operands
        )
        return GemmPlan(m=m, n=n, k=k, batch_shape=tuple(rest[:num_batch]), a=a, b=b, c=c)


def is_blas_matrix(rows: int, cols: int, row_stride: int, col_stride: int) -> bool:
    """Whether BLAS can read the matrix: one unit stride, the other no smaller than the extent."""

    def dense(inner: int, inner_stride: int, outer: int, outer_stride: int) -> bool:
        extent = max(inner, 1)
        return (inner_stride == 1 or inner <= 1) and (
            outer <= 1 or extent <= outer_stride <= MAX_INT32
        )

    return dense(rows, row_stride, cols, col_stride) or dense(cols, col_stride, rows, row_stride)


def plan_gemm(a: StridedView, b: StridedView, c: StridedView) -> GemmPlan | str:
    """Plan ``c[..., M, N] = a[..., M, K] x b[..., K, N]``.

    Parameters
    ----------
    a, b : StridedView
        Operands; their leading (batch) dimensions broadcast against those of `c`.
    c : StridedView
        The result.

    Returns
    -------
    GemmPlan or str
        The plan, or the reason why one call of the library cannot do it.
    """
    batch_shape = c.shape[:-2]
    a = broadcast_to(a, (*batch_shape, *a.shape[-2:]))
    b = broadcast_to(b, (*batch_shape, *b.shape[-2:]))
    batch: list[CommonFactor] = []
    for axes in zip(a.axes[:-2], b.axes[:-2], c.axes[:-2], strict=True):
        factors = common_factors(axes)
        if factors is None:
            return "a batch dimension is cut differently in operands and result"
        batch += factors
    m = _single([a.axes[-2], c.axes[-2]])
    n = _single([b.axes[-1], c.axes[-1]])
    k = _single([a.axes[-1], b.axes[-2]])
    if m is None or n is None or k is None:
        name = "M" if m is None else "N" if n is None else "K"
        return f"{name} is not one evenly spaced dimension"
    batch = joined_common(batch)
    plan = _assemble(a, b, c, k, _give_batch_to_matrix(batch, m, n))
    if _reason_against(plan):
        # A repeated matrix may have moved into M or N, where BLAS cannot repeat.
        plan = _assemble(a, b, c, k, (batch, m, n))
    return _reason_against(plan) or plan


def _assemble(
    a: StridedView,
    b: StridedView,
    c: StridedView,
    k: CommonFactor,
    batch_m_n: tuple[list[CommonFactor], CommonFactor, CommonFactor],
) -> GemmPlan:
    batch, m, n = batch_m_n

    def operand(which: int, offset: int, row_stride: int, col_stride: int) -> Operand:
        batch_strides = tuple(factor.strides[which] for factor in batch)
        return Operand(
            offset=offset,
            row_stride=row_stride,
            col_stride=col_stride,
            batch_strides=batch_strides,
        )

    return GemmPlan(
        m=m.size,
        n=n.size,
        k=k.size,
        batch_shape=tuple(factor.size for factor in batch),
        a=operand(0, a.offset, m.strides[0], k.strides[0]),
        b=operand(1, b.offset, k.strides[1], n.strides[0]),
        c=operand(2, c.offset, m.strides[1], n.strides[1]),
    )


def _single(axes: Sequence[tuple[Factor, ...]]) -> CommonFactor | None:
    """The one factor that two axes share, or None if they need several."""
    factors = common_factors(axes)
    if factors is None or len(factors) > 1:
        return None
    # The stride of a single step is free; 1 keeps equal problems equal.
    return factors[0] if factors else CommonFactor(1, (1, 1))


def _give_batch_to_matrix(
    batch: list[CommonFactor], m: CommonFactor, n: CommonFactor
) -> tuple[list[CommonFactor], CommonFactor, CommonFactor]:
    """Move the innermost batch dimensions into M where B repeats, or into N where A repeats."""
    batch = list(batch)
    while batch:
        size, (a, b, c) = batch[-1]
        if b == 0 and m.size > 1 and (a, c) == (m.size * m.strides[0], m.size * m.strides[1]):
            m = CommonFactor(m.size * size, m.strides)
        elif a == 0 and n.size > 1 and (b, c) == (n.size * n.strides[0], n.size * n.strides[1]):
            n = CommonFactor(n.size * size, n.strides)
        elif b == 0 and m.size == 1:
            m = CommonFactor(size, (a, c))
        elif a == 0 and n.size == 1:
            n = CommonFactor(size, (b, c))
        else:
            break
        batch.pop()
    return batch, m, n


def _reason_against(plan: GemmPlan) -> str:
    """Why the library cannot run a plan; empty if it can."""
    if len(plan.batch_shape) > MAX_BATCH_DIMS:
        return f"more than {MAX_BATCH_DIMS} batch dimensions"
    if max(plan.m, plan.n, plan.k, *plan.batch_shape) > MAX_INT32:
        return "a size does not fit 32 bits"
    matrices = {
        "the first operand": (plan.m, plan.k, plan.a),
        "the second operand": (plan.k, plan.n, plan.b),
        "the result": (plan.m, plan.n, plan.c),
    }
    for name, (rows, cols, operand) in matrices.items():
        if not is_blas_matrix(rows, cols, operand.row_stride, operand.col_stride):
            return f"{name} is neither row-major nor column-major"
    return ""
