"""Times kernels of a busy or quiet machine so that a disturbance is noticed.

    pass 1   kernel 0: [reference, calls] [reference, calls] ...    kernel 1: ...
    pass 2   the same with buffers of their own

Between the rounds of every kernel a reference kernel runs. A round is disturbed where the reference
takes longer than it does when nothing else runs, and is then repeated. The two passes lie seconds
apart: the difference of their medians is what a measurement repeated later differs by.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from disco_fuse.kernels.cpu import BUILD_CONFIG, ScheduleCPU
from disco_fuse.kernels.stages import shape_of
from disco_fuse.profile.database import Sample
from disco_fuse.profile.kernels import buffer_sets, kernel_evaluator

# A reference of 64 KiB stays in the private cache and takes a few microseconds.
_REFERENCE_ELEMENTS = 16 * 1024
_REFERENCE_CALLS = 5
DISTURBED_ABOVE = 1.10
"""Load of other processes shows as tens of percent, the jitter of a quiet machine as a few."""
_ROUNDS = 4
_MOST_ROUNDS = 16
_ROUND_S = 0.004
_LEAST_CALLS = 3
_MOST_CALLS = 60


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Measured time of one kernel.

    Attributes
    ----------
    sample : Sample
        Of all calls in the rounds that count.
    first_us, again_us : float
        Medians of the two passes alone.
    reference_us : float
        Median of the reference kernel in these rounds.
    disturbed : bool
        Some of these rounds were disturbed, for want of enough others.
    """

    sample: Sample
    first_us: float
    again_us: float
    reference_us: float
    disturbed: bool


@dataclass(frozen=True)
class _Round:
    reference_us: float
    times_us: list[float]


class Reference:
    """A small kernel that tells whether the machine is disturbed.

    The lower quartile of its times so far counts as that of a quiet machine (not the least one: a
    processor that was idle runs a quarter faster for a moment). So the first rounds of a process
    may pass for quiet ones although they are not, and all where less than a quarter are quiet.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        ty = relax.TensorType((_REFERENCE_ELEMENTS,), "float32")
        builder = relax.BlockBuilder()
        x = relax.Var("x", ty)
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit_te(_square_plus, x))
        func = next(f for f in builder.get().functions.values() if isinstance(f, tirx.PrimFunc))
        library = compile_kernels({"reference": func}, target)
        self._arguments = buffer_sets([ty, ty])[0]
        self._evaluate = kernel_evaluator(library, "reference", self._arguments)
        self._sorted_us: list[float] = []
        self.measure()

    def measure(self) -> float:
        """Microseconds now."""
        times = [float(self._evaluate(*self._arguments).mean) for _ in range(_REFERENCE_CALLS)]
        now = float(np.median(times)) * 1e6
        bisect.insort(self._sorted_us, now)
        return now

    @property
    def quiet_us(self) -> float:
        """Microseconds on a quiet machine, as far as is known."""
        return self._sorted_us[len(self._sorted_us) // 4]

    def is_quiet(self, reference_us: float) -> bool:
        """Whether the reference takes as long as on a quiet machine."""
        return reference_us <= DISTURBED_ABOVE * self.quiet_us


def compile_kernels(functions: Mapping[str, tirx.PrimFunc], target: tvm.target.Target) -> Any:
    """Kernels scheduled and compiled as one library, each under its name."""
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    with target, tvm.transform.PassContext(config=BUILD_CONFIG):
        scheduled = tvm.transform.Sequential([ScheduleCPU()])(tvm.IRModule(named))
        return tvm.compile(scheduled, target=target).mod


def measure_kernels(
    functions: Mapping[str, tirx.PrimFunc],
    target: tvm.target.Target,
    reference: Reference,
    on_measured: Callable[[], None] | None = None,
) -> dict[str, Timing]:
    """Time every kernel, as legalised or after FuseTIR, with the project's own schedules.

    Parameters
    ----------
    functions : mapping of str to PrimFunc
    on_measured : callable, optional
        Called after each kernel of each of the two passes.

    Raises
    ------
    Exception
        Whatever TVM raises where a kernel cannot be compiled.
    """
    library = compile_kernels(functions, target)
    rounds: dict[str, list[list[_Round]]] = {name: [] for name in functions}
    for seed in range(2):
        for name, func in functions.items():
            sets = buffer_sets([_type(buffer) for buffer in func.params], seed)
            evaluate = kernel_evaluator(library, name, sets[0])
            rounds[name].append(_rounds(evaluate, sets, reference))
            if on_measured is not None:
                on_measured()
    return {name: timing_of(passes, reference) for name, passes in rounds.items()}


def timing_of(passes: list[list[_Round]], reference: Reference) -> Timing:
    """What the rounds of both passes say; of each pass the quietest count."""
    counted = [sorted(rounds, key=lambda one: one.reference_us)[:_ROUNDS] for rounds in passes]
    every = [one for rounds in counted for one in rounds]
    first, again = ([us for one in rounds for us in one.times_us] for rounds in counted)
    return Timing(
        sample=Sample.of(first + again),
        first_us=float(np.median(first)),
        again_us=float(np.median(again)),
        reference_us=float(np.median([one.reference_us for one in every])),
        disturbed=any(not reference.is_quiet(one.reference_us) for one in every),
    )


def _rounds(evaluate: Any, sets: list[list[Any]], reference: Reference) -> list[_Round]:
    """Rounds until enough of them were quiet, or there were too many."""
    evaluate(*sets[0])
    result: list[_Round] = []
    quiet = 0
    while quiet < _ROUNDS and len(result) < _MOST_ROUNDS:
        before = reference.measure()
        times = _calls(evaluate, sets)
        # The worse of before and after: a disturbance may begin in between.
        result.append(_Round(max(before, reference.measure()), times))
        quiet += reference.is_quiet(result[-1].reference_us)
    return result


def _calls(evaluate: Any, sets: list[list[Any]]) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + _ROUND_S
    while len(times) < _LEAST_CALLS or (len(times) < _MOST_CALLS and time.perf_counter() < end):
        times.append(float(evaluate(*sets[len(times) % len(sets)]).mean) * 1e6)
    return times


def _square_plus(x: Any) -> Any:
    return tvm.topi.add(tvm.topi.multiply(x, x), x)


def _type(buffer: Any) -> relax.TensorType:
    return relax.TensorType(shape_of(buffer), str(buffer.dtype))
