"""``disco-fuse dashboard``: wrong calls, and clean ends with pages open."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from disco_fuse.cli.main import main

TOKEN = "a-token-of-the-tests"


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program, and the address that it says."""
    command = [sys.executable, "-W", "error", "-m", "disco_fuse.cli", "dashboard", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"(http://\S+) \(Ctrl-C ends it\)", line)
        assert found, (line, process.stderr and process.stderr.read())
        yield process, found[1]
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_page_open(number: signal.Signals, tmp_path: Path) -> None:
    with started(str(tmp_path), "--port", "0") as (process, address):
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"DisCoFuse" in answer.read()
        port = int(address.rsplit(":", 1)[1].strip("/"))
        with socket.create_connection(("127.0.0.1", port), timeout=60) as page:
            page.sendall(
                b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            )
            assert page.recv(12) == b"HTTP/1.1 101"
            process.send_signal(number)
            output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, "", "")


def test_the_token_is_not_said(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    with started(str(tmp_path), "--port", "0", "--token-file", str(tmp_path / "token")) as (
        process,
        address,
    ):
        visitor = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with visitor.open(f"{address}?token={TOKEN}", timeout=60) as answer:
            assert (answer.status, answer.url) == (200, address)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        output = process.stdout.read()  # what was buffered behind the first line, and the rest
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, "open it once with ?token=TOKEN\n", "")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["dashboard", str(tmp_path), "--port", port])
    assert result.exit_code == 1
    assert f"port {port} of 127.0.0.1 is in use; choose another with --port" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "70000 is not in the range"),
        (["--host", "0.0.0.0"], "other machines see the page: this needs a token"),
        (["--host", "no.such.host.invalid"], "no host 'no.such.host.invalid'"),
        (["--token", "short"], "the token has 5 characters; allowed: 16 to 200 letters"),
        (["--token", TOKEN, "--token-file", "file"], "--token or --token-file, not both"),
        (["--token-file", "nowhere"], "'nowhere' does not exist"),
        (["--token-file", "file"], "file: cannot be read: 'utf-8' codec"),
    ],
)
def test_wrong_calls(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"\xff\xfe")
    result = CliRunner().invoke(main, ["dashboard", *arguments])
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert TOKEN not in result.output


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_: object, **options: object) -> None:
        served.append(options)

    served: list[dict[str, object]] = []
    monkeypatch.setattr("disco_fuse.cli.dashboard.serve", serve)
    monkeypatch.chdir(tmp_path)
    for name in ("logs", "plan"):
        (tmp_path / name).mkdir()
    (tmp_path / "plan" / "events.jsonl").write_text("")
    (tmp_path / "token").write_text(TOKEN)
    text = CliRunner().invoke(main, ["dashboard", "--help"]).stdout
    examples = re.findall(r"^ *\$ disco-fuse (.*)$", text, re.MULTILINE)
    for example in examples:
        result = CliRunner().invoke(main, shlex.split(example))
        assert result.exit_code == 0, result.output
    assert [(options["host"], options["port"]) for options in served] == [
        ("127.0.0.1", 8765),
        ("127.0.0.1", 9000),
        ("0.0.0.0", 8765),
    ]
