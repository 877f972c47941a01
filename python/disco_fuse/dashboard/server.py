"""The web server: one page, its scripts, and a websocket that tells every open page what is new."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from importlib.resources import files

from tornado.httpserver import HTTPServer
from tornado.web import Application

from disco_fuse.dashboard.access import Access
from disco_fuse.dashboard.board import Dashboard
from disco_fuse.dashboard.handlers import Live, NotFound, Page
from disco_fuse.dashboard.watch import Watch

_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/views.js": ("views.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/timeline.js": ("timeline.js", "text/javascript; charset=utf-8"),
}

_FAREWELL_S = 0.1  # for the messages that end open pages to leave


def application(dashboard: Dashboard) -> Application:
    """The fixed list of what is served: no request names a file."""
    folder = files("disco_fuse.dashboard")
    routes = [
        (path, Page, {"dashboard": dashboard, "body": (folder / name).read_bytes(), "kind": kind})
        for path, (name, kind) in _FILES.items()
    ]
    return Application(
        [*routes, ("/live", Live, {"dashboard": dashboard})],
        default_handler_class=NotFound,
        default_handler_args={"dashboard": dashboard},
        log_function=lambda _: None,  # addresses may hold the token
        websocket_ping_interval=20,
        websocket_ping_timeout=20,
        websocket_max_message_size=4096,
    )


async def serve(
    watch: Watch,
    access: Access,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    on_ready: Callable[[int], None] = lambda _: None,
) -> None:
    """Serve the page until `stop` is set; open pages are then told, and closed.

    Parameters
    ----------
    port : int
        0 for any that is free.
    on_ready : callable
        Called with the port when the page can be opened.

    Raises
    ------
    OSError
        If the port is in use.
    """
    dashboard = Dashboard(watch, access)
    listening = _listen(host, port)
    server = HTTPServer(
        application(dashboard),
        max_body_size=4096,
        max_header_size=16384,
        idle_connection_timeout=60,
    )
    server.add_socket(listening)
    bound = listening.getsockname()[1]
    dashboard.cookie_name = f"disco_fuse_{bound}"  # cookies are shared by all ports of a host
    following = asyncio.create_task(dashboard.follow_files())
    stopping = asyncio.create_task(stop.wait())
    on_ready(bound)
    try:
        await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()  # raises: it ends by an error only
    finally:
        server.stop()
        for client in list(dashboard.clients):
            client.close(1001, "the dashboard was stopped")
        for task in (following, stopping):
            task.cancel()
        await asyncio.gather(following, stopping, return_exceptions=True)
        await asyncio.sleep(_FAREWELL_S)
        await server.close_all_connections()


def _listen(host: str, port: int) -> socket.socket:
    """A socket on the first address of the host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listening = socket.create_server(address, family=family)
    listening.setblocking(False)
    return listening
