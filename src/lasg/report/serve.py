"""The report of runs under way: one page on this machine's loopback, which loads itself again."""

from __future__ import annotations

import html
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lasg.errors import LasgError

HOST = "127.0.0.1"


class LivePage(ThreadingHTTPServer):
    """Serves one page to this machine alone; `make` builds it for every request."""

    daemon_threads = True

    def __init__(self, make: Callable[[], str], port: int, seconds: float) -> None:
        self.make, self.seconds = make, seconds
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise LasgError(
                f"cannot listen on port {port} of this machine: {error.strerror}; --port 0 finds one"
            ) from None
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LivePage

    def do_GET(self) -> None:
        """Answer with the page; with nothing to those who came by another name, from a page of the web."""
        if self.headers.get("Host") not in self.server.names:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(self._page())

    def _page(self) -> str:
        try:
            return self.server.make()
        except LasgError as error:  # a run that has only begun has nothing to show yet
            return f"<!doctype html><title>lasg</title><p>{html.escape(str(error))}</p>"

    def _send(self, page: str) -> None:
        data = page.encode(errors="replace")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Refresh", f"{self.server.seconds:g}")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Stay silent: the terminal is the user's."""
