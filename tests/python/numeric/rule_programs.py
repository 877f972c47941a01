"""Random fusion groups as data: a list of steps that TVM and numpy both carry out.

A test names a family of operations (`rule_operations`); hypothesis draws programs from it, the CPU
rules write the kernel, and numpy computes the same in float64.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from cpu_kernels import TARGETS, group, kernel, run
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.target import Target

from disco_fuse.kernels.cpu import ScheduleCPU

Array = NDArray[Any]
Emit = Callable[[relax.Expr], relax.Expr]
Draw = Callable[[Any], Any]

TOLERANCES = {"bfloat16": 4e-2, "float32": 5e-5, "float64": 1e-11}
"""Largest error relative to the largest value that the program computes on the way.

A rounding is 4e-3, 6e-8 or 1e-16; a program has at most seven steps, of which sums add
up to 4096 numbers (at most 9 in bfloat16) and products magnify what came before.
"""
MAX_ELEMENTS = 4096
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65)
"""Around the widths of vectors (4 to 16 elements), half of them odd."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation on earlier values; the operation "input" is a tensor from outside."""

    operation: str
    sources: tuple[int, ...] = ()
    settings: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What a step means: to TVM ``emit(emit, settings, *values)``, to numpy ``compute``."""

    emit: Callable[..., relax.Expr]
    compute: Callable[..., Array]


@dataclass(kw_only=True)
class Program:
    """Steps, what numpy says their values are, and whether a value is free of rounding.

    Only what is free of rounding may be compared, sorted or rounded: elsewhere the reference
    may come out on the other side.
    """

    operations: dict[str, Operation]
    steps: list[Step] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)

    def __repr__(self) -> str:
        return "\n".join(
            f"v{i} = {s.operation}{s.sources}{s.settings}: {d}{list(v.shape)}"
            for i, (s, v, d) in enumerate(zip(self.steps, self.values, self.dtypes, strict=True))
        )

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text("\n" + repr(self))  # hypothesis asks for it

    def shape(self, value: int) -> tuple[int, ...]:
        """Shape of a value."""
        return self.values[value].shape

    def input(
        self, shape: Sequence[int], dtype: str, low: int = -9, high: int = 10, *, distinct: int = 0
    ) -> int:
        """Add an input; integers are from ``[low, high)``.

        With ``distinct`` = 1 + axis they are different along that axis.
        """
        place = len(self.steps)
        array = _random(np.random.default_rng(place), tuple(shape), dtype, low, high, distinct)
        step = Step(operation="input", settings=(low, high, distinct))
        return self._append(step, array, dtype, exact=True)

    def add(
        self,
        operation: str,
        sources: Sequence[int],
        settings: Sequence[Any] = (),
        *,
        dtype: str | None = None,
        exact: bool = False,
    ) -> int | None:
        """Add a step, unless its value is too big; it has the first source's type by default."""
        step = Step(operation=operation, sources=tuple(sources), settings=tuple(settings))
        arrays = [self.values[i] for i in sources]
        with np.errstate(all="ignore"):
            value = np.asarray(self.operations[operation].compute(step.settings, *arrays))
        own = self.dtypes[sources[0]] if dtype is None else dtype
        if value.size > MAX_ELEMENTS or not np.isfinite(value.astype("float64")).all():
            return None
        if own.startswith("int") and np.abs(value).max(initial=0) > 2**20:
            return None  # products of these would overflow
        value = value.astype("float64" if "float" in own else own)
        return self._append(step, value, own, exact=exact)

    def _append(self, step: Step, value: Array, dtype: str, *, exact: bool) -> int:
        self.steps.append(step)
        self.values.append(value)
        self.dtypes.append(dtype)
        self.exact.append(exact)
        return len(self.steps) - 1

    @property
    def inputs(self) -> list[int]:
        """Values that come from outside."""
        return [i for i, step in enumerate(self.steps) if step.operation == "input"]

    @property
    def outputs(self) -> list[int]:
        """Computed values that no step reads, and the first computed one."""
        read = {source for step in self.steps for source in step.sources}
        computed = [i for i in range(len(self.steps)) if i not in self.inputs]
        return [i for i in computed if i not in read or i == computed[0]]

    def emit(self, emit: Emit, *parameters: relax.Var) -> list[relax.Expr]:
        """The program as Relax ops."""
        rest, values = list(parameters), []
        for step in self.steps:
            if step.operation == "input":
                values.append(rest.pop(0))
                continue
            sources = [values[i] for i in step.sources]
            values.append(self.operations[step.operation].emit(emit, step.settings, *sources))
        return [values[i] for i in self.outputs]


def _random(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, low: int, high: int, distinct: int
) -> Array:
    """Normal numbers of a type's precision in float64, whole numbers, or booleans."""
    if dtype == "bool":
        return rng.random(shape) > 0.5
    if "float" in dtype:
        numbers = np.asarray(rng.standard_normal(shape))
        return numbers.astype(_numpy_type(dtype)).astype("float64")
    if distinct:
        axis = distinct - 1
        order = np.argsort(rng.random((*shape[:axis], high - low, *shape[axis + 1 :])), axis)
        return (np.take(order, range(shape[axis]), axis) + low).astype(dtype)
    return np.asarray(rng.integers(low, high, shape), dtype)


def _numpy_type(dtype: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


class _Messages(logging.Handler):
    """Keeps what the rules say."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def scheduled(module: tvm.IRModule, target: Target) -> tuple[tvm.IRModule, list[str]]:
    """The module with scheduled kernels, and what the rules said while they were written."""
    messages = _Messages()
    logger = logging.getLogger("disco_fuse.kernels")
    before = logger.level
    logger.addHandler(messages)
    logger.setLevel(logging.DEBUG)
    try:
        return ScheduleCPU(target)(module), messages.texts
    finally:
        logger.setLevel(before)
        logger.removeHandler(messages)


def check_program(program: Program, target: Target) -> tirx.PrimFunc:
    """Compare the scheduled group with numpy; returns the kernel.

    No rule may fail on the way: what the next one or plain loops save is a defect all the same.
    """
    specs = [(program.shape(i), program.dtypes[i]) for i in program.inputs]
    arrays = [program.values[i].astype(_numpy_type(program.dtypes[i])) for i in program.inputs]
    module, messages = scheduled(group(program.emit, specs), target)
    func = kernel(module)
    failures = [text for text in messages if "failed on" in text or text.startswith("plain")]
    assert not failures, failures
    empty = any(0 in tuple(map(int, p.ty.shape)) for p in func.params)
    assert empty or func.attrs["tirx.is_scheduled"]
    tolerance = max((TOLERANCES.get(dtype, 0.0) for dtype in program.dtypes), default=0.0)
    sizes = [np.abs(v.astype("float64")).max(initial=0.0) for v in program.values]
    scale = max(1.0, *(float(size) for size in sizes))
    for got, output in zip(run(module, arrays, target), program.outputs, strict=True):
        want, dtype = program.values[output], program.dtypes[output]
        assert got.shape == want.shape, output
        assert got.dtype == _numpy_type(dtype), output
        if "float" not in dtype:
            np.testing.assert_array_equal(got, want, err_msg=f"v{output}")
            continue
        close = {"rtol": tolerance, "atol": tolerance * scale}
        np.testing.assert_allclose(got.astype("float64"), want, err_msg=f"v{output}", **close)
    return func


Maker = Callable[[Draw, Program], Any]
"""Draws one more step; does nothing where none fits."""


@st.composite
def programs(
    draw: Draw,
    operations: dict[str, Operation],
    makers: Sequence[Maker],
    dtypes: Sequence[str],
    *,
    extents: Sequence[int] = EXTENTS,
    first: Maker | None = None,
) -> Program:
    """Programs of one to seven steps by ``makers`` (the first by ``first``, if it is given)."""
    program = Program(operations=operations)
    rank = draw(st.integers(1 if first is None else 2, 5))
    shape: list[int] = []
    for _ in range(rank):
        room = MAX_ELEMENTS // max(1, int(np.prod(shape)))
        shape.append(draw(st.sampled_from([e for e in extents if e <= room])))
    program.input(draw(st.permutations(shape)), draw(st.sampled_from(dtypes)))
    if first is not None:
        first(draw, program)
    for _ in range(draw(st.integers(1, 6))):
        draw(st.sampled_from(makers))(draw, program)
    if len(program.inputs) == len(program.steps):
        program.add("logical_not" if program.dtypes[0] == "bool" else "double", [0])
    return program


def sweep(strategy: st.SearchStrategy[Program], num_examples: int) -> None:
    """Check that many programs, the same ones every time, for both widths of vectors."""

    def body(program: Program, target: str) -> None:
        check_program(program, TARGETS[target])

    targets = st.sampled_from(sorted(TARGETS))
    limits = settings(max_examples=num_examples, deadline=None, derandomize=True, database=None)
    limits(given(program=strategy, target=targets)(body))()
