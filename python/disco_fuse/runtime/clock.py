"""How far the clocks of ranks are apart, by pings (Cristian, Distributed Computing 3, 1989).

    rank r   sent ---.              .--- received
    rank 0            `--- there ---'

Whenever rank 0 read its clock, it was between `sent` and `received`: half of the way, up to half
of what the ping took. The shortest of many pings knows best.
"""

from __future__ import annotations

from dataclasses import dataclass

from disco_fuse.runtime.control import ControlChannel

_NUM_PINGS = 50
_WHAT = "the comparison of clocks"


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """What to add to ``time.monotonic_ns()`` of this rank to have that of rank 0.

    Attributes
    ----------
    offset_ns : int
    error_ns : int
        How far off it may be, in either direction.
    """

    offset_ns: int
    error_ns: int


def measure_offset(control: ControlChannel) -> ClockOffset:
    """The offset of this rank; all ranks of the channel call this together.

    Raises
    ------
    RuntimeError
        If a rank has left or does not answer.
    """
    offset = ClockOffset(offset_ns=0, error_ns=0)
    for rank in range(1, control.world_size):
        control.exchange(b"", _WHAT)  # so that pings do not wait for the turns of others
        if control.rank == 0:
            control.answer_pings(rank, _NUM_PINGS, _WHAT)
        elif control.rank == rank:
            pings = [control.ping(0, _WHAT) for _ in range(_NUM_PINGS)]
            sent, there, received = min(pings, key=lambda ping: ping[2] - ping[0])
            offset = ClockOffset(
                offset_ns=there - (sent + received) // 2, error_ns=(received - sent + 1) // 2
            )
    return offset
