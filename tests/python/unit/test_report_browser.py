"""The report in a real browser: it opens fast, draws its lanes, zooms, and runs no name as code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from browser import chromium, console_problems, screenshot
from test_report import EVIL, result

from disco_fuse.report import render, report_data

ORANGE = (0xD9, 0x79, 0x3B)
_LANES = 3000  # spans of the big page, some more than BERT-base has


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(1250, 1500) as driver:
        yield driver


def opened(driver: Any, data: dict[str, Any], path: Path) -> float:
    """Seconds until the page has drawn everything."""
    path.write_text(render(data), encoding="utf-8")
    begin = time.perf_counter()
    driver.get(path.as_uri())
    ready = "return document.body.dataset.ready === 'yes' && window.lanes.drawn() > 0"
    while not driver.execute_script(ready):
        time.sleep(0.01)
        assert time.perf_counter() - begin < 30
    return time.perf_counter() - begin


def test_a_report(browser: Any, tmp_path: Path) -> None:
    tuned, events = result()
    data = report_data(tuned, events, "full")
    opened(browser, data, tmp_path / "report.html")
    assert browser.title == "fork on test"
    pairs = (data["lanes"], data["baseline_lanes"])
    spans = sum(len(lane["starts"]) for pair in pairs for lane in pair.values())
    assert browser.execute_script("return window.lanes.drawn()") == spans
    rows = browser.execute_script("return document.querySelectorAll('#strategies tr').length")
    assert rows == len(tuned.baselines) + 1
    marked = browser.execute_script("return document.querySelectorAll('.ours-row').length")
    assert marked == 1
    # The bars have the colours of the lanes.
    colour = (
        "const bar = document.querySelector('#groups .library, #groups .kernel');"
        "return getComputedStyle(bar).backgroundColor"
    )
    assert browser.execute_script(colour) == "rgb(72, 120, 168)"
    cut = (
        "return [...document.querySelectorAll('.bars td')]"
        ".filter((cell) => cell.scrollWidth > cell.clientWidth).length"
    )
    assert browser.execute_script(cut) == 0
    ticks = "return [...document.querySelectorAll('#progress text')].map((t) => t.textContent)"
    assert {"0", "20", "40", "60", "candidates, 60 in all"} <= set(browser.execute_script(ticks))
    assert browser.execute_script("return document.querySelectorAll('#progress path').length") == 1
    assert console_problems(browser) == []


def test_zoom_and_names(browser: Any, tmp_path: Path) -> None:
    data = report_data(*result(), "full")
    opened(browser, data, tmp_path / "report.html")
    end = data["best_baseline_ms"]  # the longer one of both pairs of lanes
    assert browser.execute_script("return window.lanes.range()") == pytest.approx([0, end])
    wheel = (
        "const canvas = document.getElementById('lanes');"
        "const box = canvas.getBoundingClientRect();"
        "canvas.dispatchEvent(new WheelEvent('wheel', {deltaY: -500, cancelable: true,"
        " clientX: box.left + box.width / 2, clientY: box.top + 60}));"
        "return window.lanes.range()"
    )
    begin, finish = browser.execute_script(wheel)
    assert 0 < begin < finish < end
    assert finish - begin == pytest.approx(end * 2.718281828**-1)
    browser.execute_script("window.lanes.zoom(-1, 1e9)")
    assert browser.execute_script("return window.lanes.range()") == pytest.approx([0, end])
    hover = (
        "const canvas = document.getElementById('lanes');"
        "const box = canvas.getBoundingClientRect();"
        "canvas.dispatchEvent(new PointerEvent('pointermove', {"
        " clientX: box.left + 116, clientY: box.top + 60}));"
        "return document.getElementById('tip').textContent"
    )
    first = data["lanes"]["compute"]["names"][0]
    assert first in browser.execute_script(hover)
    assert console_problems(browser) == []


def test_a_name_is_no_code(browser: Any, tmp_path: Path) -> None:
    opened(browser, report_data(*result(EVIL), "full"), tmp_path / "evil.html")
    assert browser.title == " ".join(f"{EVIL} on test".split())
    assert browser.execute_script("return window.hacked === undefined")
    assert browser.execute_script("return document.images.length") == 0
    assert console_problems(browser) == []


def test_a_big_report_opens_fast(browser: Any, tmp_path: Path) -> None:
    data = report_data(*result(), "full")
    for i, name in enumerate(("compute", "communication")):
        data["lanes"][name] = {
            "starts": [float(k) for k in range(_LANES)],
            "durations": [0.9] * _LANES,
            "kind": [2 * i] * _LANES,
            "names": [f"#{k} some kernel of a model and 7 more" for k in range(_LANES)],
        }
    data["lanes"]["waits"] = {"starts": [], "durations": [], "kind": [], "names": []}
    data["baseline_lanes"] = data["lanes"]
    data |= {"makespan_ms": float(_LANES), "buckets": data["buckets"] * 200}
    seconds = min(opened(browser, data, tmp_path / "big.html") for _ in range(3))
    print(f"opened in {seconds:.2f} s")
    # No more rectangles than pixel columns of four lanes: the rest could not be told apart.
    assert browser.execute_script("return window.lanes.drawn()") <= 4 * 1250
    browser.execute_script("window.lanes.zoom(100, 110)")
    time.sleep(0.2)
    assert browser.execute_script("return window.lanes.drawn()") <= 4 * 12
    assert console_problems(browser) == []
    picture = matplotlib.image.imread(screenshot(browser, "report"))
    colours = (picture[:, :, :3] * 255).round().astype(int).reshape(-1, 3)
    assert (colours == ORANGE).all(axis=1).sum() > 1000
