"""What members of an elastic run tell a newcomer, over HTTP: the run's settings, and the state. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socketserver
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.transports.links import RUN_WORD

WORD = "X-Lasg-Secret"
PATIENCE = 60.0
"""Seconds that a newcomer asks for a state before it asks another member."""
MEMBERS = re.compile(r"lasg\|([\w.-]+)\|(\w{8})\|([\w.\[\]:-]+?):[0-9a-f]{8}-[0-9a-f-]{27}")
"""How the lighthouse's page names a member: its name, its run, and where its state is."""


class NotYet(Exception):  # noqa: N818
    """The member that was asked has no state of that round yet."""


def digest(settings: dict[str, Any]) -> str:
    """Return a short name for what members of a run must agree on."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def _word() -> str:
    return hashlib.sha256(os.environ.get(RUN_WORD, "").encode()).hexdigest()


class StateServer:
    """Answers newcomers, in threads of its own."""

    def __init__(self, address: str, settings: dict[str, Any], state: Callable[[int], dict[str, Any]]) -> None:
        """Take where to listen, the settings, and what returns the state of a round or a later one."""

        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE

            def do_GET(self) -> None:
                if self.headers.get(WORD) != _word():
                    self.send_error(403)
                    return
                try:
                    what, _, k = self.path.strip("/").partition("/")
                    body = json.dumps(settings).encode() if what == "settings" else pack(state(int(k)))
                except (NotYet, ValueError):
                    self.send_error(503)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        self._server = _Server((address, 0), Handler)
        self.at = f"{address}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="lasg-state", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Does not ask for its own name: where no name server answers, that takes half a minute."""

    daemon_threads = True

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = map(str, self.server_address[:2])  # type: ignore[assignment]


def _get(url: str, seconds: float) -> bytes:
    request = urllib.request.Request(url, headers={WORD: _word()})  # noqa: S310
    with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
        return bytes(answer.read())


def fetch_settings(at: str, seconds: float = 5.0) -> dict[str, Any] | None:
    """Return the settings of the run of the member at an address; None: it does not answer."""
    try:
        found = json.loads(_get(f"http://{at}/settings", seconds))
    except urllib.error.HTTPError as error:
        if error.code == 403:
            raise LasgError(
                f"the member at {at} has another {RUN_WORD}: set the run's, or take a lighthouse of your own"
            ) from None
        return None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def fetch_state(at: str, k: int, patience: float = PATIENCE) -> dict[str, Any]:
    """Return the state of round k, or of a later one, from the member at an address."""
    end = time.monotonic() + patience
    while True:
        try:
            return unpack(_get(f"http://{at}/state/{k}", max(1.0, patience)), f"the state of the member at {at}")
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > end:
                raise ConnectionError(f"the member at {at} gave no state: {error}") from None
            time.sleep(0.05)


def look(lighthouse: str, own: str, settings: dict[str, Any]) -> None:
    """Refuse a lighthouse that does not answer, or that serves another run, or the same run with other settings."""
    try:
        page = _get(f"{lighthouse}/status", 5.0).decode("utf-8", "replace").replace("&#124;", "|")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise LasgError(
            f"no lighthouse answers at {lighthouse}: {reason}. Start one with `lasg elastic lighthouse`, and "
            "open its port"
        ) from None
    heard = page.partition("Heartbeats")[2]
    alive = [entry for entry in heard.split("<li")[1:] if "old" not in entry.partition(">")[0]]
    for entry in alive:
        found = MEMBERS.search(entry)
        if found and found[2] != digest(settings):
            refuse_other(settings, fetch_settings(found[3]), found[1], lighthouse)
        elif found and found[1] == own:
            raise LasgError(
                f"there is a member {own} already, at {found[3]}: give this one another name. If it has just died, it "
                "is forgotten after the lighthouse's heartbeat timeout"
            )


def refuse_other(own: dict[str, Any], theirs: dict[str, Any] | None, name: str, lighthouse: str) -> None:
    """Say what differs from the run that the lighthouse serves; say nothing if that member is gone."""
    for what, value in (theirs or {}).items():
        if own.get(what) != value:
            raise LasgError(
                f"the lighthouse {lighthouse} serves a run whose {what} is {value!r}, and here it is "
                f"{own.get(what)!r}: start this rank as {name} was started, or take a lighthouse of its "
                "own for another run"
            )
