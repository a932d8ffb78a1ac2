"""Every test here has its own cache and no network; a small covtype stands in for the real one."""

import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from lasg.data.sources import FILES

REAL_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
COVTYPE = "covtype.data.gz"


@pytest.fixture(autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASG_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("LASG_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name, source in FILES.items():
        # nothing listens on port 1, so that a download fails at once
        monkeypatch.setitem(FILES, name, replace(source, urls=(f"http://127.0.0.1:1/{name}",)))


@pytest.fixture
def cache_dir(isolated: None) -> Path:
    from lasg.data import cache

    return cache.root()


@pytest.fixture
def real_data() -> Path:
    if not REAL_DATA.is_dir():
        pytest.skip(f"the real data files are not in {REAL_DATA}")
    return REAL_DATA


@dataclass(frozen=True)
class Small:
    """A covtype of 40 rows under the real one's name, with its checksum in the table of sources."""

    content: bytes
    compressed: bytes
    sha256: str

    def put(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / COVTYPE
        path.write_bytes(self.compressed)
        return path


@pytest.fixture
def small(isolated: None, monkeypatch: pytest.MonkeyPatch) -> Small:
    rows = [[(row * column) % 17 for column in range(54)] + [1 + row % 7] for row in range(40)]
    content = "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
    sha256 = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(FILES, COVTYPE, replace(FILES[COVTYPE], sha256=sha256))
    return Small(content, gzip.compress(content, mtime=0), sha256)


class Handler(BaseHTTPRequestHandler):
    """Serves `pages`: a path's (promised length or None, body); any other path is 404."""

    pages: ClassVar[dict[str, tuple[int | None, bytes]]] = {}

    def do_GET(self) -> None:
        if self.path not in self.pages:
            self.send_error(404, "Not Found")
            return
        length, body = self.pages[self.path]
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


Serve = Callable[..., list[str]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serve bodies on 127.0.0.1 and let covtype's addresses point at them, in order."""
    monkeypatch.setattr(Handler, "pages", {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def start(*pages: tuple[int | None, bytes] | None) -> list[str]:
        urls = []
        for number, page in enumerate(pages):
            path = f"/{number}/{COVTYPE}"
            urls.append(f"http://127.0.0.1:{server.server_address[1]}{path}")
            if page is not None:
                Handler.pages[path] = page
        monkeypatch.setitem(FILES, COVTYPE, replace(FILES[COVTYPE], urls=tuple(urls)))
        return urls

    yield start
    server.shutdown()
    thread.join()
    server.server_close()


def left_behind(folder: Path) -> list[Path]:
    """List the files in a folder, hidden ones included."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
