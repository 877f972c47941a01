"""Small values between all ranks, without ever blocking inside MPI.

    rank 0   send to 1, 2 | probe 1, 2 ... all there -> go on
    rank 1   send to 0, 2 | probe 0, 2 ... rank 2 has left, or nothing for timeout_s -> error

A blocking collective of MPI would wait for ever for a rank that has ended, could not say for whom
it waits, and would keep signals of Python from being handled. Gradients do not come this way.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any

_EXCHANGE, _LEAVE, _PING = 1, 2, 3  # tags of messages; a channel has a communicator of its own
_SPIN_S = 2e-3  # ranks that are in step meet within that, and timings start behind a barrier
_SHORT_S, _LONG_S, _PATIENCE_S = 5e-5, 1e-3, 0.1


class ControlChannel:
    """All ranks of one job; all make the same calls in the same order.

    Parameters
    ----------
    comm
        An mpi4py intra-communicator of its own.
    timeout_s
        Seconds after which an exchange gives up.
    status
        An mpi4py ``Status``, for the sizes of what arrives.
    """

    def __init__(self, comm: Any, timeout_s: float, status: Any) -> None:
        self._comm = comm
        self._timeout_s = timeout_s
        self.rank: int = comm.Get_rank()
        self.world_size: int = comm.Get_size()
        self._others = [rank for rank in range(self.world_size) if rank != self.rank]
        self._left: set[int] = set()
        # Messages under way, with their buffers: they stay here if an exchange fails.
        self._sends: list[tuple[Any, bytes]] = []
        self._status = status

    def exchange(self, payload: bytes, what: str) -> list[bytes]:
        """The payload of every rank, in rank order, on every rank.

        Parameters
        ----------
        payload
            Any bytes; sizes may differ.
        what
            What the ranks do together, for errors.

        Raises
        ------
        RuntimeError
            Naming the ranks that have left the job or that sent nothing for `timeout_s`.
        """
        for rank in self._others:
            self._send(payload, rank, _EXCHANGE)
        received = {self.rank: payload}
        start = time.monotonic()
        while True:
            self._note_leavers()
            for rank in self._others:
                # A rank that is one exchange ahead may have sent twice: take one message only.
                if rank not in received:
                    message = self._receive(rank, _EXCHANGE)
                    if message is not None:
                        received[rank] = message
            self._sends = [(request, data) for request, data in self._sends if not request.Test()]
            missing = [rank for rank in self._others if rank not in received]
            if not missing and not self._sends:
                return [received[rank] for rank in range(self.world_size)]
            self._check(missing, time.monotonic() - start, what)
            _pause(time.monotonic() - start)

    def answer_pings(self, rank: int, num_pings: int, what: str) -> None:
        """Send this rank's clock back to `rank`, which calls :meth:`ping`; errors as there."""
        for _ in range(num_pings):
            self._await_ping(rank, what)
            self._send(struct.pack("q", time.monotonic_ns()), rank, _PING)

    def ping(self, rank: int, what: str) -> tuple[int, int, int]:
        """This clock, the clock of `rank` and this clock again: what it answers, and when.

        Returns
        -------
        sent_ns, there_ns, received_ns
            Of ``time.monotonic_ns``.

        Raises
        ------
        RuntimeError
            As :meth:`exchange`.
        """
        sent_ns = time.monotonic_ns()
        self._send(b"", rank, _PING)
        (there_ns,) = struct.unpack("q", self._await_ping(rank, what))
        return sent_ns, there_ns, time.monotonic_ns()

    def _await_ping(self, rank: int, what: str) -> bytes:
        start = time.monotonic()
        while (data := self._receive(rank, _PING)) is None:
            self._note_leavers()
            self._check([rank], time.monotonic() - start, what)
            _pause(time.monotonic() - start)
        return data

    def leave(self) -> None:
        """Tell the other ranks that this one takes part in nothing any more."""
        for rank in self._others:
            self._send(b"", rank, _LEAVE)

    def abort(self, exit_code: int) -> None:
        """End all ranks at once."""
        self._comm.Abort(exit_code)

    def _send(self, payload: bytes, rank: int, tag: int) -> None:
        self._sends.append((self._comm.Isend(payload, dest=rank, tag=tag), payload))

    def _note_leavers(self) -> None:
        for rank in self._others:
            if rank not in self._left and self._comm.Iprobe(source=rank, tag=_LEAVE):
                self._comm.Recv(bytearray(), source=rank, tag=_LEAVE)
                self._left.add(rank)

    def _receive(self, rank: int, tag: int) -> bytes | None:
        """The next message of a rank with that tag, None if there is none yet."""
        if not self._comm.Iprobe(source=rank, tag=tag, status=self._status):
            return None
        data = bytearray(self._status.Get_count())
        self._comm.Recv(data, source=rank, tag=tag)
        return bytes(data)

    def _check(self, missing: list[int], waited_s: float, what: str) -> None:
        # Messages of one rank keep their order: what it sent before it left has been seen by now.
        gone = [rank for rank in missing if rank in self._left]
        who = f"rank {self.rank} of {self.world_size}"
        if gone:
            raise RuntimeError(f"{_ranks(gone)} left the job before {what}; {who} waits for it")
        if waited_s > self._timeout_s:
            whom = _ranks(missing or self._others)
            raise RuntimeError(f"{who} waited {self._timeout_s:g} s in {what} for {whom}")


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _pause(waited_s: float) -> None:
    """Give the core away: at once to whoever wants it, later for longer."""
    if waited_s < _SPIN_S:
        os.sched_yield()
    else:
        time.sleep(_SHORT_S if waited_s < _PATIENCE_S else _LONG_S)
