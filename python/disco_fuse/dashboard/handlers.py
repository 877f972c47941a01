"""Answers to requests: the page and its parts, and the websocket. Everything is read-only."""

from __future__ import annotations

import asyncio
import json
import logging
from types import TracebackType
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from disco_fuse.dashboard.board import Dashboard

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_UNAUTHORISED = (
    "This page needs its token: open it once as /?token=TOKEN, or send 'Authorization: Bearer "
    "TOKEN'.\n"
)


class Guarded(RequestHandler):
    """Refuses what :class:`~disco_fuse.dashboard.access.Access` does not allow."""

    dashboard: Dashboard

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        """Answer here what may not be seen; the handler's own method is not called then."""
        access = self.dashboard.access
        host = self.request.headers.get("Host", "")
        if not access.allows_host(host):
            self.refuse(403, f"no such host here: {host[:100]}\n")
        elif access.needs_token and not self._is_known():
            given = self.get_query_arguments("token")
            if self.request.path == "/" and len(given) == 1 and access.is_token(given[0]):
                self.set_cookie(
                    self.dashboard.cookie_name, access.cookie, httponly=True, samesite="Lax"
                )
                self.redirect("/", status=303)  # so that the token leaves the address bar
            else:
                self.refuse(401, _UNAUTHORISED)

    def _is_known(self) -> bool:
        access = self.dashboard.access
        kind, _, given = self.request.headers.get("Authorization", "").partition(" ")
        if kind == "Bearer" and access.is_token(given.strip()):
            return True
        return access.is_cookie(self.get_cookie(self.dashboard.cookie_name, "") or "")

    def refuse(self, status: int, text: str) -> None:
        """Answer with a plain text."""
        self.set_status(status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        if status == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        self.finish(text)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """What tornado itself refuses, and errors of ours: no more than the status."""
        del kwargs
        self.refuse(status_code, f"{status_code} {self._reason}\n")

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Errors of ours, without the address of the request: it may hold the token."""
        del typ, tb
        is_ours = getattr(value, "status_code", 500) >= 500
        if is_ours and not isinstance(value, StreamClosedError | WebSocketClosedError):
            logging.getLogger("disco_fuse.dashboard").error(
                "%s %s", self.request.method, self.request.path, exc_info=value
            )


class Page(Guarded):
    """One of the files of the page."""

    def initialize(self, dashboard: Dashboard, body: bytes, kind: str) -> None:
        self.dashboard, self._body, self._kind = dashboard, body, kind

    def get(self) -> None:
        self.set_header("Content-Type", self._kind)
        self.finish(self._body)


class NotFound(Guarded):
    """Everything else."""

    def initialize(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            self.refuse(404, "no such page\n")


class Live(Guarded, WebSocketHandler):
    """One open page. It may say which run it looks at: ``{"run": ID}``."""

    def initialize(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self._run_id = self._told = ""
        self._following: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        super().prepare()
        if not self._finished and len(self.dashboard.clients) >= self.dashboard.max_clients:
            self.refuse(503, f"{self.dashboard.max_clients} pages are open already\n")

    def open(self, *args: str, **kwargs: str) -> None:
        del args, kwargs
        self.dashboard.clients.add(self)
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        """Send the state whenever it is another, one message at a time."""
        try:
            while True:
                await self.dashboard.wait_for(self._has_news)
                self._told = self.dashboard.message(self._run_id)
                await self.write_message(self._told)
        except (WebSocketClosedError, StreamClosedError):
            return

    def _has_news(self) -> bool:
        return self.dashboard.message(self._run_id) != self._told

    async def on_message(self, message: str | bytes) -> None:
        """Another run to look at; anything else ends the connection."""
        try:
            asked = json.loads(message)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict) or not isinstance(asked.get("run"), str):
            self.close(1003, 'allowed: {"run": ID}')
            return
        self._run_id = asked["run"]
        await self.dashboard.notify()

    def on_close(self) -> None:
        self.dashboard.clients.discard(self)
        if self._following is not None:
            self._following.cancel()
