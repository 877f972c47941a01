"""What all open pages share: the runs, and the news about them.

    files --Watch--> version grows --notify--> every client: overview and its run, as JSON

A client gets the whole state of what it looks at, never a difference: one that is slow, or was
away, misses nothing. It is written to again only when the last message has left, so that a client
that does not read takes the memory of one message.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from tornado.websocket import WebSocketHandler

from disco_fuse.dashboard.access import Access
from disco_fuse.dashboard.watch import Watch

MAX_CLIENTS = 32
_PERIOD_S = 0.3  # between two looks at the files, hence two messages
_SCAN_PERIOD_S = 2.0
_SLICE_S = 0.05  # reading files before others get a turn


class Dashboard:
    """What the handlers share: the runs, who may see them, and who is looking.

    Parameters
    ----------
    watch : Watch
    access : Access
    """

    def __init__(self, watch: Watch, access: Access) -> None:
        self.watch, self.access = watch, access
        self.clients: set[WebSocketHandler] = set()
        self.cookie_name = "disco_fuse"
        self.max_clients = MAX_CLIENTS
        self._changed = asyncio.Condition()
        self._messages: dict[str, str] = {}  # of the present version, by the run that is looked at
        self._version = -1

    def message(self, run_id: str) -> str:
        """The state as JSON, with the details of one run; equal questions share the answer."""
        if self._version != self.watch.version:
            self._messages.clear()
            self._version = self.watch.version
        if run_id not in self.watch.runs:
            run_id = ""
        if run_id not in self._messages:
            run = self.watch.runs.get(run_id)
            state = {
                "now": time.time(),
                "overview": self.watch.overview(),
                "run": None if run is None else run.snapshot(),
            }
            self._messages[run_id] = json.dumps(state, allow_nan=False, separators=(",", ":"))
        return self._messages[run_id]

    async def wait_for(self, is_new: Callable[[], bool]) -> None:
        """Return when there is something that the client has not been told."""
        async with self._changed:
            await self._changed.wait_for(is_new)

    async def notify(self) -> None:
        """Let the clients look whether there is something new for them."""
        async with self._changed:
            self._changed.notify_all()

    async def follow_files(self) -> None:
        """Read what is appended to the files, until cancelled."""
        scanned = told = -float("inf")
        while True:
            begin = time.monotonic()
            if begin - scanned >= _SCAN_PERIOD_S:
                self.watch.scan()
                scanned = begin
            more, slice_begin = False, begin
            for is_new in self.watch.read():
                more = more or is_new
                if time.monotonic() - slice_begin > _SLICE_S:
                    await asyncio.sleep(0)
                    slice_begin = time.monotonic()
            if time.monotonic() - told >= _PERIOD_S:
                await self.notify()
                told = time.monotonic()
            await asyncio.sleep(0 if more else _PERIOD_S)
