"""The AllReduce curve: evaluation, and a fit that measurements with outliers do not spoil."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import numpy.typing as npt

from disco_fuse import _ffi
from disco_fuse.checks import MAX_US, is_number, require

Values = npt.NDArray[np.float64]

# The slowest rate is that of a ring over links of 1 kB/s: with it a terabyte still takes fewer
# nanoseconds than fit 64 bits.
_MOST = {
    "small_latency_us": MAX_US,
    "large_latency_us": MAX_US,
    "small_us_per_byte": 2e3,
    "large_us_per_byte": 2e3,
    "threshold_bytes": 2**62,
}
# Different sizes needed on each side of the threshold before a line of its own is worth it.
_MIN_SIZES = 3


@dataclass(frozen=True, kw_only=True)
class AllReduceModel:
    """Time of one AllReduce: one line for small, one for large messages.

    ``time = latency_us + us_per_byte * bytes``; "small" is below ``threshold_bytes``.
    """

    small_latency_us: float
    small_us_per_byte: float
    large_latency_us: float
    large_us_per_byte: float
    threshold_bytes: int

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"AllReduceModel.{item.name} must be a number, got {value!r}")
            most = _MOST[item.name]
            ok = is_number(value) and 0 <= value <= most
            require(ok, f"AllReduceModel.{item.name}", f"from 0 to {most:g}", value)
        if not isinstance(self.threshold_bytes, int):
            raise TypeError(
                f"AllReduceModel.threshold_bytes must be an int, got {self.threshold_bytes!r}"
            )

    @classmethod
    def linear(cls, *, latency_us: float, us_per_byte: float) -> AllReduceModel:
        """One line for all sizes."""
        return cls(
            small_latency_us=latency_us,
            small_us_per_byte=us_per_byte,
            large_latency_us=latency_us,
            large_us_per_byte=us_per_byte,
            threshold_bytes=0,
        )

    def time_us(self, num_bytes: int) -> float:
        """Time of one message, microseconds, rounded to nanoseconds as in the simulator."""
        return float(_ffi.function("cost.allreduce_time_us")(asdict(self), int(num_bytes)))

    @classmethod
    def fit(
        cls,
        sizes_bytes: Sequence[float] | Values,
        times_us: Sequence[float] | Values,
        threshold_bytes: int | None = None,
    ) -> AllReduceModel:
        """Fit two lines by the Theil-Sen estimator, which tolerates a quarter of outliers.

        Two segments with robust regression follow the authors' code (repository
        yxd886/tensorflow); the estimator is Sen, "Estimates of the regression coefficient based on
        Kendall's tau", JASA 63, 1968.

        Parameters
        ----------
        sizes_bytes : float[n]
            Message sizes; repeat a size for repeated measurements.
        times_us : float[n]
            Measured times.
        threshold_bytes : int, optional
            First size of the second line. Default: the one with the smallest relative error; one
            line if there are too few different sizes for two.

        Raises
        ------
        ValueError
            For fewer than two different sizes, unequal lengths, or values that are no sizes or
            times.
        """
        sizes, times = _checked(sizes_bytes, times_us)
        distinct = np.unique(sizes)
        if threshold_bytes is None:
            inner = distinct[_MIN_SIZES : len(distinct) - _MIN_SIZES + 1]
            thresholds = [0, *(int(size) for size in inner)]
        else:
            thresholds = [threshold_bytes]
        models = [_fit_at(sizes, times, threshold) for threshold in thresholds]
        return min(models, key=lambda model: _error(model, sizes, times))


def _checked(
    sizes_bytes: Sequence[float] | Values, times_us: Sequence[float] | Values
) -> tuple[Values, Values]:
    sizes, times = np.array(sizes_bytes, np.float64), np.array(times_us, np.float64)
    if sizes.ndim != 1 or sizes.shape != times.shape:
        raise ValueError(
            f"sizes and times must be 1-d and equally long, got {sizes.shape} and {times.shape}"
        )
    for name, values in (("sizes_bytes", sizes), ("times_us", times)):
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ValueError(f"{name} must be finite and > 0, got {values.tolist()}")
    if len(np.unique(sizes)) < 2:
        raise ValueError(f"at least two different sizes are needed, got {sizes.tolist()}")
    return sizes, times


def _fit_at(sizes: Values, times: Values, threshold: int) -> AllReduceModel:
    below = sizes < threshold
    # A side with a single size has no line of its own and shares the one of all sizes.
    parts = [
        part if len(np.unique(sizes[part])) >= 2 else np.ones_like(below)
        for part in (below, ~below)
    ]
    (small_latency, small_slope), (large_latency, large_slope) = (
        _line(sizes[part], times[part]) for part in parts
    )
    return AllReduceModel(
        small_latency_us=small_latency,
        small_us_per_byte=small_slope,
        large_latency_us=large_latency,
        large_us_per_byte=large_slope,
        threshold_bytes=threshold,
    )


def _line(x: Values, y: Values) -> tuple[float, float]:
    """Intercept and slope, both cut off at 0: a message never takes less than no time."""
    i, j = np.triu_indices(len(x), 1)
    different = x[i] != x[j]
    i, j = i[different], j[different]
    slope = max(float(np.median((y[j] - y[i]) / (x[j] - x[i]))), 0.0)
    return max(float(np.median(y - slope * x)), 0.0), slope


def _error(model: AllReduceModel, sizes: Values, times: Values) -> float:
    small = model.small_latency_us + model.small_us_per_byte * sizes
    large = model.large_latency_us + model.large_us_per_byte * sizes
    predicted = np.where(sizes < model.threshold_bytes, small, large)
    # Capped, so that one outlier does not choose the threshold.
    return float(np.mean(np.minimum(np.abs(predicted / times - 1), 1.0)))
