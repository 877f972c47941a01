"""The HTML report of a search: its data, its structure, and that no name is ever code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from graphs import CLUSTER
from test_choice import problem

from disco_fuse.cli.main import main
from disco_fuse.config import SearchConfig
from disco_fuse.cost_model import CostModel, Group, RooflineCostModel, predict_checked
from disco_fuse.graph import OpGraph
from disco_fuse.report import render, report_data
from disco_fuse.search import SearchEvent
from disco_fuse.tuning import TuningResult, tune

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=alert(1)>$data${style}"


def result(name: str = "fork") -> tuple[TuningResult, list[SearchEvent]]:
    events: list[SearchEvent] = []
    config = SearchConfig.preset("full", max_steps=60, report_every=10, seed=3)
    named = replace(problem(), name=name)
    return tune(named, CLUSTER, config, on_event=events.append), events


class Page(HTMLParser):
    """What a browser would see: elements with an id, scripts, styles, and what is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.scripts: list[tuple[dict[str, Any], str]] = []
        self.styles: list[str] = []
        self.policy = ""
        self.tags: list[str] = []
        self._open: tuple[str, dict[str, Any]] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        attributes = dict(attrs)
        self.tags.append(tag)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        self.loaded += [v for k, v in attributes.items() if k in ("src", "href", "action")]
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]
        if tag in ("script", "style"):
            self._open = (tag, attributes)

    def handle_endtag(self, _tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is not None and self._open[0] == "script":
            self.scripts.append((self._open[1], data))
        elif self._open is not None:
            self.styles.append(data)


def source(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_data() -> None:
    tuned, events = result()
    data = report_data(tuned, events, "full")
    assert data["title"] == "fork on test"
    lanes = data["lanes"]
    assert len(lanes["compute"]["starts"]) + len(lanes["communication"]["starts"]) == len(
        tuned.timeline.events
    )
    lane = lanes["communication"]
    ends = [s + d for s, d in zip(lane["starts"], lane["durations"], strict=True)]
    finish_ms = [e.finish_ns / 1e6 for e in tuned.timeline.events if e.stream == "communication"]
    assert ends == pytest.approx(finish_ms)
    assert data["makespan_ms"] == pytest.approx(tuned.makespan_us / 1e3)
    candidates = [point[0] for point in data["progress"]]
    makespans = [point[1] for point in data["progress"]]
    assert candidates == sorted(candidates)
    assert makespans == sorted(makespans, reverse=True)
    assert makespans[-1] == pytest.approx(tuned.search.makespan_us / 1e3)
    assert ("seed", "3") in data["versions"]
    assert {"disco-fuse", "apache-tvm", "torch", "Python"} <= {row[0] for row in data["versions"]}
    assert {row[0] for row in data["strategies"]} == {*tuned.baselines, "disco_fuse"}
    waits_ms = sum(data["lanes"]["waits"]["durations"])
    label = f"400 B, 1 gradient, exposed {waits_ms:.3f} ms"
    assert [bar[1:] for bar in data["buckets"]] == [(400, label, "bucket")]
    assert waits_ms == pytest.approx(tuned.timeline.exposed_us / 1e3)
    best = data["baseline_lanes"]["compute"]
    last = best["starts"][-1] + best["durations"][-1]
    assert last == pytest.approx(tuned.best_baseline.makespan_us / 1e3)
    times = [bar[1] for bar in data["groups"]]
    assert times == sorted(times, reverse=True)


class TwiceTheRoofline(CostModel):
    """Another model than the one that files are read with."""

    name = "twice"
    digest = "twice"

    def predict(self, graph: OpGraph, groups: Sequence[Group]) -> Any:
        return 2 * predict_checked(RooflineCostModel(CLUSTER.device), graph, groups)


def test_lanes_are_priced_as_the_search_was() -> None:
    config = SearchConfig.preset("full", max_steps=60, seed=3)
    tuned = tune(problem(), CLUSTER, config, cost_model=TwiceTheRoofline())
    data = report_data(tuned, [], "full")
    lane = data["lanes"]["compute"]
    assert sum(lane["durations"]) >= tuned.timeline.compute_us / 1e3
    assert ("cost model", "twice") in data["versions"]


def test_a_long_search_keeps_its_curve_short() -> None:
    tuned, _ = result()
    event = SearchEvent(
        num_steps=1, num_candidates=1, makespan_us=1.0, improved=True, elapsed_s=0, num_queued=1
    )
    many = [replace(event, num_candidates=i, makespan_us=1e5 - i) for i in range(50_000)]
    progress = report_data(tuned, many, "full")["progress"]
    assert len(progress) <= 1001
    # The end is what the result says, whatever the last event was.
    end = (tuned.search.num_candidates, pytest.approx(tuned.search.makespan_us / 1e3))
    assert progress[-1] == end
    unfit = [replace(event, makespan_us=float("inf"))]
    assert report_data(tuned, unfit, "full")["progress"] == [end]


def test_one_file_that_loads_nothing() -> None:
    page = Page(render(report_data(*result(), "full")))
    assert page.loaded == ["data:,"]
    (data, code) = page.scripts
    assert data[0] == {"type": "application/json", "id": "data"}
    assert page.policy.startswith("default-src 'none';")
    assert f"script-src {source(code[1])}" in page.policy
    assert f"style-src {source(page.styles[0])}" in page.policy
    assert "http" not in code[1].replace("http://www.w3.org/2000/svg", "")
    wanted = set(re.findall(r'getElementById\("(\w+)"\)', code[1]))
    wanted |= set(re.findall(r'(?:table|bars|curve)\("(\w+)"', code[1]))
    assert wanted - {"id"} <= page.ids


def test_names_are_text() -> None:
    plain, evil = (Page(render(report_data(*result(name), "full"))) for name in ("fork", EVIL))
    assert evil.tags == plain.tags
    assert evil.scripts[1] == plain.scripts[1]
    text = render(report_data(*result(EVIL), "full"))
    assert json.loads(Page(text).scripts[0][1])["title"] == f"{EVIL} on test"
    script = Page(text).scripts[1][1]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script


def test_option_of_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/disco-fuse", "tune", "a model"])
    problem().save(tmp_path / "problem.json.gz")
    command = ["tune", "--problem", str(tmp_path / "problem.json.gz"), "--max-steps", "50"]
    done = CliRunner().invoke(main, [*command, "--report", str(tmp_path / "report.html")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    data = json.loads(Page(text).scripts[0][1])
    assert data["title"] == "fork on cluster-a"
    (command_line, made) = data["versions"][:2]
    assert command_line[0] == "command"
    assert command_line[1].endswith(" tune 'a model'")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\+00:00", made[1])
    failed = CliRunner().invoke(main, [*command, "--report", str(tmp_path / "no" / "x.html")])
    assert failed.exit_code == 2
    assert f"{tmp_path / 'no'}" in failed.stderr
    assert isinstance(failed.exception, SystemExit)
