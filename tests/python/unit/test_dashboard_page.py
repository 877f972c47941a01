"""The live page in a real browser: it draws, numbers move, it reconnects, texts are no code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, console_problems, screenshot
from event_files import LANES, SEARCH_START, append, job_start, limits, progress, search_end, step

from disco_fuse.dashboard import Access, Watch, serve

TOKEN = "a-token-of-the-tests"
EVIL = "<script>document.title='caught'</script><img src=x onerror=\"document.title='caught'\">"


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


class Site:
    """The server in a thread of this process."""

    def __init__(self, folder: Path, token: str | None = None) -> None:
        self._folder, self._access = folder, Access("127.0.0.1", token)
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """On any free port, or on the one of before."""
        ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._serve(ready)])
        self._thread.start()
        assert ready.wait(60)

    async def _serve(self, ready: threading.Event) -> None:
        def on_ready(port: int) -> None:
            self.port = port
            ready.set()

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await serve(
            Watch([self._folder]),
            self._access,
            host="127.0.0.1",
            port=self.port,
            stop=self._stop,
            on_ready=on_ready,
        )

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    server = Site(tmp_path)
    yield server
    server.stop()


def figure(page: Any, name: str) -> str:
    """What a tile says."""
    found = page.find_elements("css selector", f"dd[data-figure='{name}']")
    return found[0].text if found else ""


def until(condition: Callable[[], bool]) -> None:
    """Wait for at most a minute: the machine may be busy."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def num_colors(page: Any, index: int) -> int:
    """How many colors the canvas of that number has."""
    code = """
        const canvas = document.querySelectorAll("canvas")[arguments[0]];
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
    """
    return int(page.execute_script(code, index))


def test_a_search_moves(page: Any, site: Site, tmp_path: Path) -> None:
    page.get(site.address)
    until(lambda: "No events*.jsonl yet" in page.find_element("id", "run").text)
    path = tmp_path / "plan" / "events.jsonl"
    append(path, SEARCH_START, limits())
    for i in range(1, 30):
        append(path, progress(10 * i, 9000.0 - 50 * i))
    append(path, progress(300, 7000.0, event="incumbent", lanes=LANES))
    until(lambda: figure(page, "best so far") == "7.000 ms")
    assert figure(page, "queue") == "5"
    assert figure(page, "gain over best baseline") == "50.0 %"
    assert figure(page, "above the lower bound") == "16.7 %"
    legend = [item.text for item in page.find_elements("css selector", ".legend li")]
    assert "best baseline, horovod 10.500 ms" in legend
    assert "lower bound 6.000 ms" in legend
    assert figure(page, "candidates a second") == "1000"
    append(path, progress(400, 6000.0))
    until(lambda: figure(page, "best so far") == "6.000 ms")
    assert page.find_element("class name", "mark").text == "live"
    for canvas in range(3):
        assert num_colors(page, canvas) > 5
    append(path, search_end())
    until(lambda: figure(page, "gain over best baseline") == "25.0 %")
    assert page.find_element("class name", "mark").text == "ended: patience"
    screenshot(page, "dashboard_search")
    assert console_problems(page) == []


def test_the_timeline_zooms(page: Any, site: Site, tmp_path: Path) -> None:
    append(tmp_path / "events.jsonl", SEARCH_START, search_end())
    page.get(site.address)
    until(lambda: figure(page, "best so far") == "0.080 ms")
    before = page.execute_script("return document.querySelector('canvas').toDataURL()")
    code = """
        const canvas = document.querySelector("canvas");
        const {left, top} = canvas.getBoundingClientRect();
        const at = {bubbles: true, cancelable: true, clientX: left + 400, clientY: top + 10};
        canvas.dispatchEvent(new WheelEvent("wheel", {...at, deltaY: -100}));
        canvas.dispatchEvent(new PointerEvent("pointermove", at));
        return [canvas.toDataURL(), canvas.nextElementSibling.textContent];
    """
    after, said = page.execute_script(code)
    assert before != after
    assert said == "matmul: 0.060 ms from 0.000 ms"
    assert console_problems(page) == []


def test_a_training_with_a_straggler(page: Any, site: Site, tmp_path: Path) -> None:
    for rank, busy_us in ((0, 9000.0), (1, 12000.0)):
        steps = [step(i, busy_us, 15000.0 - busy_us) for i in range(1, 41)]
        append(tmp_path / f"events-rank-{rank}.jsonl", job_start(rank), *steps)
    page.get(site.address)
    # "step" is that of the slowest rank, which is unknown until both files have been read.
    until(lambda: figure(page, "stragglers") == "rank 1" and figure(page, "step") == "40")
    assert figure(page, "exposed communication") == "4.50 ms"
    assert len(page.find_elements("css selector", "tr.straggler")) == 1
    for rank in (0, 1):
        append(tmp_path / f"events-rank-{rank}.jsonl", step(41))
    until(lambda: figure(page, "step") == "41")
    assert figure(page, "loss") == f"{4 / 41:.5g}"
    screenshot(page, "dashboard_training")
    assert console_problems(page) == []


def listed(page: Any) -> dict[str, str]:
    """What the list says of each run, at one moment: its elements are replaced as events come."""
    script = "return [...document.querySelectorAll('nav button')].map(one => one.innerText)"
    return {text.split("\n")[0]: text for text in page.execute_script(script)}


def test_a_live_run_is_looked_at_until_the_visitor_chooses(
    page: Any, site: Site, tmp_path: Path
) -> None:
    append(tmp_path / "old" / "events.jsonl", SEARCH_START, search_end())
    page.get(site.address)
    until(lambda: figure(page, "best so far") == "0.080 ms")
    new = tmp_path / "new" / "events.jsonl"
    append(new, {**SEARCH_START, "model": "gpt2"}, progress(1, 9000.0))
    until(lambda: figure(page, "best so far") == "9.000 ms")
    assert listed(page)["gpt2"].endswith(", live")
    assert listed(page)["bert"].endswith(", ended: patience")
    page.execute_script(
        "[...document.querySelectorAll('nav button')]"
        ".find(button => button.innerText.startsWith('bert')).click()"
    )
    until(lambda: figure(page, "best so far") == "0.080 ms")
    append(new, progress(2, 8000.0))
    until(lambda: "8.00 ms" in listed(page)["gpt2"])
    assert figure(page, "best so far") == "0.080 ms"
    assert console_problems(page) == []


def test_texts_of_events_are_no_code(page: Any, site: Site, tmp_path: Path) -> None:
    lanes = {**LANES, "streams": [EVIL, EVIL], "spans": [[0, 0.0, 60.0, 1, EVIL]]}
    search = {**SEARCH_START, "model": EVIL, "versions": {EVIL: EVIL}}
    append(tmp_path / EVIL.replace("/", "") / "events.jsonl", search, search_end(lanes=lanes))
    note = {"event": "evaluation", "step": 1, EVIL: EVIL}
    append(tmp_path / "events-rank-0.jsonl", job_start(0, 1, plan=EVIL), step(1), note)
    page.get(site.address)
    until(lambda: len(page.find_elements("css selector", "nav button")) == 2)
    for i in range(2):
        page.find_elements("css selector", "nav button")[i].click()
        until(lambda: page.find_element("tag name", "h2").text == EVIL)
    assert page.title == "DisCoFuse"
    assert page.find_elements("css selector", "main script, main img, nav img") == []
    assert console_problems(page) == []


def test_it_reconnects_and_stays_with_its_run(page: Any, site: Site, tmp_path: Path) -> None:
    append(tmp_path / "a" / "events.jsonl", SEARCH_START, progress(1, 9000.0))
    append(tmp_path / "b" / "events.jsonl", {**SEARCH_START, "model": "gpt2"})
    page.get(site.address)
    until(lambda: len(page.find_elements("css selector", "nav button")) == 2)
    button = next(b for b in page.find_elements("css selector", "nav button") if "bert" in b.text)
    button.click()
    until(lambda: figure(page, "best so far") == "9.000 ms")
    site.stop()
    until(lambda: "connection lost" in page.find_element("id", "status").text)
    append(tmp_path / "a" / "events.jsonl", progress(2, 8000.0))
    site.start()
    until(lambda: figure(page, "best so far") == "8.000 ms")
    assert page.find_element("id", "status").text == "connected"
    refused = [line for line in console_problems(page) if "WebSocket connection" not in line]
    assert refused == []


def test_the_token_in_a_browser(page: Any, tmp_path: Path) -> None:
    append(tmp_path / "events.jsonl", SEARCH_START, progress(1, 9000.0))
    site = Site(tmp_path, TOKEN)
    page.get(site.address)
    assert "This page needs its token" in page.find_element("tag name", "body").text
    screenshot(page, "dashboard_refused")
    page.get(f"{site.address}?token=not-the-token-of-the-tests")
    assert "This page needs its token" in page.find_element("tag name", "body").text
    console_problems(page)  # the two refusals
    page.get(f"{site.address}?token={TOKEN}")
    until(lambda: figure(page, "best so far") == "9.000 ms")
    assert TOKEN not in page.current_url
    assert TOKEN not in page.page_source
    page.get(site.address)
    until(lambda: figure(page, "best so far") == "9.000 ms")
    assert console_problems(page) == []
    site.stop()
