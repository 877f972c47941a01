"""The live page through a million events with ten pages open: the server's memory stays."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from event_files import LANES, SEARCH_START, append, progress
from test_cli_dashboard import started
from test_dashboard_server import Site, look_at_first, run_of
from tornado.websocket import WebSocketClientConnection

NUM_PAGES = 10
FIRST, LAST = 200_000, 1_000_000
# What one page of the allocator, one chunk of the file or one message more may take.
SLACK_BYTES = 8 << 20
LIMIT_S = 900


def resident_bytes(pid: int) -> int:
    """What a process has in memory (Linux)."""
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(kib) * 1024


def write(path: Path, first: int, last: int) -> None:
    """Append the events of that many candidates, now and then with a new best step."""
    with path.open("a", encoding="utf-8") as file:
        for number in range(first + 1, last + 1):
            best = {"event": "incumbent", "lanes": LANES} if number % 1000 == 0 else {}
            file.write(json.dumps(progress(number, 2e4 - number / 100, **best)) + "\n")


async def all_at(pages: list[WebSocketClientConnection], number: int) -> None:
    """Wait until every page shows the event of that candidate."""
    await asyncio.gather(
        *(run_of(page, lambda state: state["candidates"] == number) for page in pages)
    )


@pytest.mark.slow  # half a minute and more, for writing and reading the file
def test_memory_through_a_million_events(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    append(events, SEARCH_START)

    async def follow(pid: int, port: int) -> tuple[int, int]:
        site = Site(port, asyncio.Event())
        async with AsyncExitStack() as opened:
            pages = [await opened.enter_async_context(site.open()) for _ in range(NUM_PAGES)]
            for page in pages:
                await look_at_first(page)
            await asyncio.gather(all_at(pages, FIRST), asyncio.to_thread(write, events, 0, FIRST))
            early = resident_bytes(pid)
            await asyncio.gather(all_at(pages, LAST), asyncio.to_thread(write, events, FIRST, LAST))
            return early, resident_bytes(pid)

    with started(str(tmp_path), "--port", "0") as (process, address):
        port = int(address.rsplit(":", 1)[1].strip("/"))
        early, late = asyncio.run(asyncio.wait_for(follow(process.pid, port), LIMIT_S))
    assert late < early + SLACK_BYTES, f"{early} bytes after {FIRST} events, {late} after {LAST}"
