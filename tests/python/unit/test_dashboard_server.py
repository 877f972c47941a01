"""The live page's server: who may see it, what moves, many clients, clean ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from event_files import LANES, SEARCH_START, append, job_start, progress, step
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.websocket import WebSocketClientConnection, websocket_connect

from disco_fuse.dashboard import Access, Watch, serve

TOKEN = "a-token-of-the-tests"


class Site:
    """A running server, and questions to it."""

    def __init__(self, port: int, stop: asyncio.Event) -> None:
        self.port, self.stop = port, stop

    async def get(self, path: str = "/", **options: Any) -> HTTPResponse:
        request = HTTPRequest(
            f"http://127.0.0.1:{self.port}{path}", follow_redirects=False, **options
        )
        return await AsyncHTTPClient().fetch(request, raise_error=False)

    @asynccontextmanager
    async def open(self, **headers: str) -> AsyncIterator[WebSocketClientConnection]:
        """An open page."""
        request = HTTPRequest(f"ws://127.0.0.1:{self.port}/live", headers=headers)
        client = await websocket_connect(request)
        try:
            yield client
        finally:
            ended = client.close_code is not None
            client.close()
            if not ended:
                await read_to_the_end(client)

    async def refusal(self, **headers: str) -> int:
        """The status that a websocket is refused with."""
        upgrade = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        return (await self.get("/live", headers=upgrade | headers)).code


@asynccontextmanager
async def site(folder: Path, token: str | None = None) -> AsyncIterator[Site]:
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(
        serve(
            Watch([folder]),
            Access("127.0.0.1", token),
            host="127.0.0.1",
            port=0,
            stop=stop,
            on_ready=ready.set_result,
        )
    )
    try:
        yield Site(await asyncio.wait_for(ready, 60), stop)
    finally:
        stop.set()
        await asyncio.wait_for(serving, 60)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 120)

    asyncio.run(limited())


async def read_to_the_end(client: WebSocketClientConnection) -> int:
    """The number of messages until the connection ends."""
    number = 0
    while await asyncio.wait_for(client.read_message(), 60) is not None:
        number += 1
    return number


async def message(client: WebSocketClientConnection) -> dict[str, Any]:
    text = await asyncio.wait_for(client.read_message(), 60)
    assert isinstance(text, str)
    data = json.loads(text)
    assert isinstance(data, dict)
    return data


async def run_of(client: WebSocketClientConnection, wanted: Callable[[Any], bool]) -> Any:
    """The first state of the run in which ``wanted`` holds."""
    while True:
        found = (await message(client))["run"]
        if found is not None and wanted(found["state"]):
            return found


async def look_at_first(client: WebSocketClientConnection) -> None:
    while not (runs := (await message(client))["overview"]["runs"]):
        pass
    await client.write_message(json.dumps({"run": runs[0]["id"]}))


def test_the_page_and_its_parts(tmp_path: Path) -> None:
    async def test() -> None:
        async with site(tmp_path) as server:
            page = await server.get()
            assert page.code == 200
            policy = page.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'")
            assert "unsafe" not in policy
            text = page.body.decode()
            assert "http://" not in text
            assert "https://" not in text
            for part in ("page.css", "page.js", "views.js", "charts.js", "timeline.js"):
                assert (await server.get(f"/{part}")).code == 200
            for path in ("/../server.py", "/%2e%2e/server.py", "/server.py", "//etc/passwd", "/x"):
                assert (await server.get(path)).code == 404
            for method in ("POST", "PUT"):
                answer = await server.get(method=method, body="x")
                assert (answer.code, b"Traceback" in answer.body) == (405, False)

    run(test)


def test_values_move(tmp_path: Path) -> None:
    async def test() -> None:
        async with site(tmp_path) as server, server.open() as client:
            first = await message(client)
            assert first["overview"]["runs"] == []
            assert first["overview"]["places"] == [str(tmp_path)]
            append(tmp_path / "events.jsonl", SEARCH_START, progress(1, 9000.0))
            await look_at_first(client)
            await run_of(client, lambda state: state["makespan_us"] == 9000.0)
            append(tmp_path / "events.jsonl", progress(50, 8000.0))
            found = await run_of(client, lambda state: state["candidates"] == 50)
            assert found["state"]["makespan_us"] == 8000.0

    run(test)


def test_ten_clients_and_a_stop(tmp_path: Path) -> None:
    append(tmp_path / "search" / "events.jsonl", SEARCH_START, progress(1, 9000.0))
    append(tmp_path / "job" / "events-rank-0.jsonl", job_start(0, 1), step(1))

    async def test() -> None:
        async with site(tmp_path) as server, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.open()) for _ in range(10)]
            for client in clients:
                await look_at_first(client)
            append(tmp_path / "search" / "events.jsonl", progress(2, 8000.0))
            append(tmp_path / "job" / "events-rank-0.jsonl", step(2))
            for client in clients:
                await run_of(
                    client, lambda state: 2 in (state.get("candidates"), state.get("step"))
                )
            server.stop.set()
            for client in clients:
                await read_to_the_end(client)
                assert client.close_code == 1001

    run(test)


def test_a_client_that_does_not_read_misses_what_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disco_fuse.dashboard.board._PERIOD_S", 0.01)
    path = tmp_path / "events.jsonl"
    # Kernels keep some megabytes of what is on its way; these are 200 KB each.
    lanes = {**LANES, "spans": [[0, 1.0, 1.0, 1, "a" * 80]] * 2000}
    append(path, SEARCH_START, progress(1, 9000.0, event="incumbent", lanes=lanes))

    async def test() -> None:
        async with site(tmp_path) as server, server.open() as slow, server.open() as quick:
            await look_at_first(slow)
            await look_at_first(quick)
            for i in range(2, 102):
                append(path, progress(i, 9000.0 - i))
                await run_of(quick, lambda state, i=i: state["candidates"] == i)
            num_told = 1
            while (await message(slow))["run"]["state"]["candidates"] < 101:
                num_told += 1
            assert num_told < 60

    run(test)


def test_the_token(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with site(tmp_path, TOKEN) as server:
            for refused in (
                await server.get(),
                await server.get("/page.js"),
                await server.get("/nothing"),
                await server.get("/?token=wrong-token-of-the-tests"),
                await server.get(f"/?token={TOKEN}&token={TOKEN}"),
                await server.get(f"/page.js?token={TOKEN}"),
                await server.get("/?token=%ff%fe"),
                await server.get(headers={"Authorization": "Bearer wrong"}),
                await server.get(headers={"Authorization": f"Basic {TOKEN}"}),
                await server.get(headers={"Cookie": f"disco_fuse_{server.port}={TOKEN}"}),
            ):
                assert refused.code in (400, 401)
                assert b"DisCoFuse" not in refused.body
            assert await server.refusal() == 401
            opened = await server.get(f"/?token={TOKEN}")
            assert (opened.code, opened.headers["Location"]) == (303, "/")
            cookie = opened.headers["Set-Cookie"]
            assert TOKEN not in cookie
            assert "HttpOnly" in cookie
            assert "SameSite=Lax" in cookie
            known = {"Cookie": cookie.split(";")[0]}
            assert (await server.get(headers=known)).code == 200
            assert (await server.get(headers={"Authorization": f"Bearer {TOKEN}"})).code == 200
            async with server.open(**known) as client:
                assert (await message(client))["run"] is None

    run(test)
    assert TOKEN not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:99", 200),
        ("localhost", 200),
        ("[::1]:8765", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:80", 403),
        ("192.168.0.1", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_a_name_that_was_made_to_point_here(host: str, code: int, tmp_path: Path) -> None:
    async def test() -> None:
        async with site(tmp_path) as server:
            assert (await server.get(headers={"Host": host})).code == code

    run(test)


def test_pages_of_others_get_no_news(tmp_path: Path) -> None:
    async def test() -> None:
        async with site(tmp_path) as server:
            assert await server.refusal(Origin="http://evil.example") == 403
            assert await server.refusal(Host="evil.example", Origin="http://evil.example") == 403

    run(test)


@pytest.mark.parametrize("words", ["x", "[]", '{"run": 3}', "[" * 4000])
def test_a_client_that_talks_nonsense_is_closed(words: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with site(tmp_path) as server, server.open() as client:
            await client.write_message(words)
            await read_to_the_end(client)
            assert client.close_code == 1003

    run(test)


def test_too_many_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disco_fuse.dashboard.board.MAX_CLIENTS", 2)

    async def test() -> None:
        async with site(tmp_path) as server, server.open():
            async with server.open():
                assert await server.refusal() == 503
            async with server.open() as client:
                assert (await message(client))["overview"]["num_runs"] == 0

    run(test)


@pytest.mark.parametrize("outside", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_need_a_token(outside: str) -> None:
    with pytest.raises(ValueError, match="this needs a token"):
        Access(outside, None)
    access = Access(outside, TOKEN)
    assert not access.is_local
    assert access.allows_host("my.machine.example")


@pytest.mark.parametrize("token", ["", "short", "with a space in it!", "x" * 201, "\u00e4" * 20])
def test_tokens_that_are_too_simple(token: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: 16 to 200 letters, digits or -\._~"):
        Access("127.0.0.1", token)


def test_a_host_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"no host 'no\.such\.host\.invalid'"):
        Access("no.such.host.invalid", None)
