"""Random numbers of a training step: a counter-based generator, as one kernel per draw.

    word(element, step; key ^ (rank << 16 | site))  ->  32 bits  ->  mask or uniform number

Nothing is stored between draws: the same counters give the same word, on every machine and however
the kernel is fused or recomputed. Distinct (element, step, rank, site) are distinct inputs of a
bijection, the Philox generator: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers:
as easy as 1, 2, 3" (SC'11), Philox2x32 with 10 rounds. The step counter, the rank and the key are
state of the step, uint32 scalars; a site is one drawing operator of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax, te, tirx

_MULTIPLIER, _WEYL, _ROUNDS = 0xD256D193, 0x9E3779B9, 10  # Salmon et al., section 3.3
MAX_RANKS = MAX_SITES = 1 << 16
_WORDS = 1 << 32
# Bits of the significand: as many as a number below 1 of the dtype can have.
_SIGNIFICAND_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def key_of_seed(seed: int) -> int:
    """A key whose bits all depend on the seed, so that near seeds share no streams.

    The finaliser of MurmurHash3 (A. Appleby, public domain), a bijection of 32 bits.

    Raises
    ------
    ValueError
        If the seed is not in 0 to 2**32 - 1.
    """
    if not 0 <= seed < _WORDS:
        raise ValueError(f"seed is {seed}; allowed: 0 to {_WORDS - 1}")
    x = seed ^ (seed >> 16)
    x = x * 0x85EBCA6B % _WORDS
    x ^= x >> 13
    x = x * 0xC2B2AE35 % _WORDS
    return x ^ (x >> 16)


class RandomSource:
    """Draws for the operators of one step, each from a site of its own.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Inside a dataflow block.
    step, rank, key : relax.Expr
        uint32 scalars.
    """

    def __init__(
        self, builder: relax.BlockBuilder, step: relax.Expr, rank: relax.Expr, key: relax.Expr
    ) -> None:
        self._builder = builder
        self._state = (step, rank, key)
        self._num_sites = 0

    def keep_mask(self, shape: Sequence[int], drop_probability: float) -> relax.Expr:
        """True with probability ``1 - drop_probability`` (to 2**-32), elementwise; bool[shape].

        Raises
        ------
        ValueError
            If the probability is not in 0 to 1, or there are too many sites or elements.
        """
        if not 0.0 <= drop_probability <= 1.0:
            raise ValueError(f"drop probability is {drop_probability}; allowed: 0 to 1")
        threshold = round(drop_probability * _WORDS)
        if threshold in (0, _WORDS):
            return self._builder.emit(relax.op.full(shape, relax.const(threshold == 0, "bool")))

        def value(word: tirx.Expr, _second: tirx.Expr) -> tirx.Expr:
            return word >= tirx.const(threshold, "uint32")

        return self._draw(shape, value, "random_mask")

    def uniform(self, shape: Sequence[int], dtype: str) -> relax.Expr:
        """Uniform in [0, 1): multiples of 2 ** -(bits of the significand of the dtype)."""
        bits = _SIGNIFICAND_BITS[dtype]

        def value(word: tirx.Expr, second: tirx.Expr) -> tirx.Expr:
            if bits > 32:
                high = word.astype("uint64") << tirx.const(32, "uint64")
                whole = (high | second.astype("uint64")) >> tirx.const(64 - bits, "uint64")
            else:
                whole = word >> tirx.const(32 - bits, "uint32")
            return whole.astype(dtype) * tirx.const(2.0**-bits, dtype)

        return self._draw(shape, value, "random_uniform")

    def _draw(self, shape: Sequence[int], value: object, name: str) -> relax.Expr:
        site = self._num_sites
        self._num_sites += 1
        if site >= MAX_SITES or math.prod(shape) > _WORDS:
            raise ValueError(
                f"draw {site} of {math.prod(shape)} elements; allowed are {MAX_SITES} draws of "
                f"{_WORDS} elements in a step"
            )

        def kernel(step: te.Tensor, rank: te.Tensor, key: te.Tensor, own: te.Tensor) -> te.Tensor:
            def element(*indices: tirx.Expr) -> tirx.Expr:
                stream = key[()] ^ ((rank[()] << tirx.const(16, "uint32")) | own[()])
                return value(*philox2x32(_flat(indices, shape), step[()], stream))  # type: ignore[operator]

            return te.compute(tuple(shape), element, name=name)

        # The site is an argument, so that draws of one shape share one kernel.
        call = self._builder.call_te(
            kernel, *self._state, relax.const(site, "uint32"), primfunc_name_hint=name
        )
        return self._builder.emit(call)


def philox2x32(
    counter: tirx.Expr, second: tirx.Expr, key: tirx.Expr
) -> tuple[tirx.Expr, tirx.Expr]:
    """Two random words (uint32) for two counters and a key (uint32)."""
    # TVM tells LLVM that unsigned sums do not overflow, and fails on casts whose bounds do not fit:
    # what wraps around is computed in 64 bits and masked.
    shift, mask, low = tirx.const(32, "uint64"), tirx.const(_WORDS - 1, "uint64"), counter
    for number in range(_ROUNDS):
        product = low.astype("uint64") * tirx.const(_MULTIPLIER, "uint64")
        bumped = key.astype("uint64") + tirx.const(number * _WEYL % _WORDS, "uint64")
        low = (product >> shift).astype("uint32") ^ (bumped & mask).astype("uint32") ^ second
        second = (product & mask).astype("uint32")
    return low, second


def _flat(indices: Sequence[tirx.Expr], shape: Sequence[int]) -> tirx.Expr:
    """Row-major position, as uint32."""
    position: tirx.Expr = tirx.const(0, "int64")
    for index, extent in zip(indices, shape, strict=True):
        position = position * tirx.const(extent, "int64") + index.astype("int64")
    return position.astype("uint32")
