"""``disco-fuse dashboard``: a live page of searches and trainings."""

from __future__ import annotations

import asyncio
import errno
import signal
from pathlib import Path

import click

from disco_fuse.dashboard import Access, Watch, serve


@click.command(
    epilog="""\b
Examples:
  $ disco-fuse dashboard logs
  $ disco-fuse dashboard plan/events.jsonl logs --port 9000
  $ disco-fuse dashboard logs --host 0.0.0.0 --token-file token

\b
On another machine, without opening a port: ssh -L 8765:127.0.0.1:8765 HOST
"""
)
@click.argument("places", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER|FILE]...")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    metavar="N",
    help="0 takes any that is free.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address to listen on; one that other machines reach needs a token.",
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="What visitors must know; others on this machine see it in the list of processes.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A file that holds the token.",
)
def dashboard(
    places: tuple[Path, ...], port: int, host: str, token: str | None, token_file: Path | None
) -> None:
    """Show running and finished searches and trainings as a web page.

    Reads the events of 'tune --events', 'tune -O' and 'run -O', and nothing else: FOLDER is
    searched for events*.jsonl, four levels deep, again and again; the current folder if none is
    given. What is not there yet is waited for. The page has no foreign parts and changes nothing.

    With a token, open the page once as http://HOST:PORT/?token=TOKEN, or send 'Authorization:
    Bearer TOKEN'. Ctrl-C or SIGTERM ends it.
    """
    if token is not None and token_file is not None:
        raise click.UsageError("give --token or --token-file, not both")
    if token_file is not None:
        token = _token_in(token_file)
    try:
        access = Access(host, token)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for place in places:
        if not place.exists():
            click.echo(f"{place} is not there yet: waiting for it", err=True)
    try:
        asyncio.run(_serve(Watch(places or (Path(),)), access, host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is in use; choose another with --port"
        else:
            message = f"cannot listen on port {port} of {host}: {error.strerror or error}"
        raise click.ClickException(message) from error


def _token_in(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file}: cannot be read: {error}") from error


async def _serve(watch: Watch, access: Access, host: str, port: int) -> None:
    def say_where(bound: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"http://{shown}:{bound}/ (Ctrl-C ends it)")
        if access.needs_token:
            click.echo("open it once with ?token=TOKEN")

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await serve(watch, access, host=host, port=port, stop=stop, on_ready=say_where)
