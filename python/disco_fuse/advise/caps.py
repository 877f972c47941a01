"""Predictions of a step for twenty bucket caps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disco_fuse.advise.replay import Replay
from disco_fuse.tensor_fusion import DDP_FIRST_CAP_BYTES, MIB, ddp_caps_bytes, ddp_partition

NUM_CAPS = 20
# Caps that people write; the one of DDP's default, 25 MiB, is among them.
_MANTISSAS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class CapResult:
    """Predictions for one cap.

    Attributes
    ----------
    cap_mb : float
        ``bucket_cap_mb``, in MiB.
    num_buckets : int
    step_us : float
        With ``bucket_cap_mb=cap_mb``.
    small_first_us : float
        With a first bucket of 1 MiB, as torch before 2.4 always makes it.
    first_cap_mb : float
        Best first entry of ``bucket_cap_mb_list=[first_cap_mb, cap_mb]``.
    list_us : float
        With that list.
    """

    cap_mb: float
    num_buckets: int
    step_us: float
    small_first_us: float
    first_cap_mb: float
    list_us: float


def candidate_caps(total_bytes: float) -> tuple[float, ...]:
    """Twenty caps in MiB, ascending; the last one holds all gradients."""
    total_mb = total_bytes / MIB
    series = [mantissa * 10.0**power for power in range(-9, 7) for mantissa in _MANTISSAS]
    last = min(bisect_left(series, total_mb), len(series) - 1)
    return tuple(float(f"{cap:g}") for cap in series[last - NUM_CAPS + 1 : last + 1])


def cap_results(replay: Replay, on_cap: Callable[[float], None]) -> tuple[CapResult, ...]:
    """Replays all candidate caps, alone and behind every smaller first cap."""
    sizes = replay.gradient_bytes.tolist()
    caps = candidate_caps(sum(sizes))
    known: dict[tuple[int, ...], float] = {}

    def step_us(caps_bytes: Sequence[int]) -> float:
        buckets = ddp_partition(sizes, caps_bytes)
        key = tuple(bucket[0] for bucket in buckets)
        if key not in known:
            known[key] = replay.step_us(buckets)
        return known[key]

    results = []
    for cap in caps:
        (cap_bytes,) = ddp_caps_bytes(cap)
        firsts = [first for first in caps if first <= cap]
        times = [step_us((*ddp_caps_bytes(first), cap_bytes)) for first in firsts]
        best = min(range(len(firsts)), key=lambda i: (times[i], -firsts[i]))
        results.append(
            CapResult(
                cap_mb=cap,
                num_buckets=len(ddp_partition(sizes, (cap_bytes,))),
                step_us=times[-1],
                small_first_us=step_us((DDP_FIRST_CAP_BYTES, cap_bytes)),
                first_cap_mb=firsts[best],
                list_us=times[best],
            )
        )
        on_cap(cap)
    return tuple(results)
