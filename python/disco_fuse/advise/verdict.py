"""Which cap to take: the fastest of the table, or the buckets that are there already.

    bucket_cap_mb   0.5      1     1.5     2      4
    ms             612.0   599.5  598.0  598.0  640.0
                           |- level: within 1 % -|        |- best: no other is faster -|

Buckets that are there already are kept unless a cap saves half a percent of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from disco_fuse.advise.caps import CapResult
from disco_fuse.advise.findings import own_buckets
from disco_fuse.advise.job import Job
from disco_fuse.advise.replay import Replay
from disco_fuse.tensor_fusion import DDP_FIRST_CAP_BYTES, MIB, ddp_caps_bytes, ddp_partition

AS_GOOD = 0.01
"""Predictions that differ by less are level."""
_WORTH = 0.005
"""A smaller part of the step is not worth a change. Half of ``AS_GOOD``, as a predicted saving of
1 % has turned out to be 12 % on gloo (672 to 666 ms, measured 701 to 614)."""


@dataclass(frozen=True, kw_only=True)
class Present:
    """The buckets that a job has, or that DDP makes of itself.

    Attributes
    ----------
    name : str
        For people.
    caps_mb : tuple of float
        Caps of the table that make the same buckets.
    step_us : float
        Predicted, microseconds.
    """

    name: str
    caps_mb: tuple[float, ...]
    step_us: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to take out of a table of caps.

    Attributes
    ----------
    caps : tuple of CapResult
        The table.
    present : Present
    """

    caps: tuple[CapResult, ...]
    present: Present

    @property
    def fastest(self) -> CapResult:
        """No cap is faster; of equal ones the one in the middle."""
        return _middle_of_fastest(self.caps, lambda cap: cap.step_us)

    @property
    def best_list(self) -> CapResult:
        """Likewise of the lists of two caps."""
        return _middle_of_fastest(self.caps, lambda cap: cap.list_us)

    @property
    def keeps(self) -> bool:
        """Whether no cap saves enough to be worth a change of the present buckets."""
        return self.saved_us <= _WORTH * self.fastest.step_us

    @property
    def best(self) -> CapResult:
        """The cap to take: the present one if it is kept and in the table."""
        mine = [cap for cap in self.caps if cap.cap_mb in self.present.caps_mb]
        return mine[len(mine) // 2] if self.keeps and mine else self.fastest

    @property
    def saved_us(self) -> float:
        """What the fastest cap saves of the present step."""
        return self.present.step_us - self.fastest.step_us

    @property
    def list_gains(self) -> bool:
        """Whether a list is faster by more than nothing."""
        chosen_us = self.present.step_us if self.keeps else self.best.step_us
        return not _is_level(chosen_us, self.best_list.list_us)

    @property
    def level_mb(self) -> tuple[float, ...]:
        """Caps as good as the fastest."""
        fastest_us = self.fastest.step_us
        return tuple(cap.cap_mb for cap in self.caps if _is_level(cap.step_us, fastest_us))

    @property
    def level_in_words(self) -> str:
        """Likewise, for people."""
        return spans(self.level_mb, [cap.cap_mb for cap in self.caps])

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        best, best_list = self.best, self.best_list
        return {
            "bucket_cap_mb": best.cap_mb,
            "bucket_cap_mb_list": [best_list.first_cap_mb, best_list.cap_mb],
            "predicted_us": best.step_us,
            "predicted_list_us": best_list.list_us,
            "level_caps_mb": list(self.level_mb),
            "present_caps_mb": list(self.present.caps_mb),
            "present_us": self.present.step_us,
            "keep_present": self.keeps,
            "saved_us": self.saved_us,
        }


def present_of_job(job: Job, replay: Replay, caps: Sequence[CapResult]) -> Present:
    """The buckets of a traced job."""
    own, sizes = own_buckets(job), replay.gradient_bytes.tolist()

    def same(*first: int) -> tuple[float, ...]:
        return tuple(
            cap.cap_mb
            for cap in caps
            if ddp_partition(sizes, (*first, *ddp_caps_bytes(cap.cap_mb))) == own
        )

    table_mb = [cap.cap_mb for cap in caps]
    plain, name = same(), "the job's own buckets"
    if plain:
        name += f" (bucket_cap_mb={spans(plain, table_mb)})"
    elif behind := same(DDP_FIRST_CAP_BYTES):
        name += f" ({spans(behind, table_mb)} MiB behind a first bucket of 1 MiB)"
    return Present(name=name, caps_mb=plain, step_us=replay.step_us(own))


def present_of_ddp(replay: Replay) -> Present:
    """The buckets that DDP makes without a cap."""
    first, rest = ddp_caps_bytes()
    return Present(
        name=f"DDP's default ({rest // MIB} MiB behind a first bucket of {first // MIB} MiB)",
        caps_mb=(),
        step_us=replay.step_us(ddp_partition(replay.gradient_bytes.tolist(), (first, rest))),
    )


def spans(caps_mb: Sequence[float], table_mb: Sequence[float]) -> str:
    """Caps of a table in words: ``0.2, 1 to 4``.

    The largest of a table makes one bucket, as larger ones do.
    """
    runs: list[list[int]] = []
    for place in sorted(table_mb.index(cap) for cap in caps_mb):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    said = []
    for run in runs:
        first, last = table_mb[run[0]], table_mb[run[-1]]
        more = f" to {last:g}" if first != last else ""
        said.append(f"{first:g}" + (" or more" if last == table_mb[-1] else more))
    return ", ".join(said)


def _is_level(time_us: float, fastest_us: float) -> bool:
    return time_us <= (1 + AS_GOOD) * fastest_us


def _middle_of_fastest(
    caps: Sequence[CapResult], time_us: Callable[[CapResult], float]
) -> CapResult:
    """Of the caps that are equal to the fastest in 1/100 ms, as a table shows times, the middle.

    Smaller ones are wrong if messages cost more than the line says, larger ones if gradients come
    otherwise than in the trace. Caps that make equally many buckets count once, by the largest.
    """
    fastest_us = min(time_us(cap) for cap in caps)
    equal = [
        cap
        for cap in caps
        if _is_level(time_us(cap), fastest_us) and _shown(time_us(cap)) == _shown(fastest_us)
    ]
    distinct = list({cap.num_buckets: cap for cap in equal}.values())
    return distinct[len(distinct) // 2]


def _shown(time_us: float) -> str:
    return f"{time_us / 1e3:.2f}"
