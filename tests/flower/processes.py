"""Real processes on loopback: SuperLink, SuperNodes and the app of `lasg flower new`, with TLS and keys."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lasg.flower import keys, new

BIN = Path(sys.executable).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Deployment:
    """Starts and stops everything; what it prints is in files in its folder."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.keys, self.app = folder, folder / "keys", folder / "lazy"
        self.nodes = [str(m) for m in range(nodes)]
        keys.create(self.keys, ["localhost", "127.0.0.1"], [*self.nodes, "stranger"])
        new.create(self.app)
        self.port = free_port()
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "trial"\n\n[superlink.trial]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.kill(name)

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def kill(self, name: str) -> None:
        """Kill a process and what it has started, as kill -9 does."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)

    def said(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def superlink(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        certificates = (self.keys / name for name in ("ca.crt", "server.pem", "server.key"))
        ca, own, key = map(str, certificates)
        self.start(
            "superlink",
            "flower-superlink",
            *("--host", "127.0.0.1", "--port", str(self.port), "--database", str(self.folder / "superlink.db")),
            *("--ssl-ca-certfile", ca, "--ssl-certfile", own, "--ssl-keyfile", key),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        )
        self.until(self._listens, 60, "the SuperLink does not listen")

    def _listens(self) -> bool:
        with socket.socket() as found:
            return found.connect_ex(("127.0.0.1", self.port)) == 0

    def register(self) -> None:
        """Tell the SuperLink the nodes' public keys."""
        for name in self.nodes:
            self.flwr("supernode", "register", str(self.keys / f"{name}.pub"), "trial")

    def flwr(self, *words: str, seconds: float = 60) -> str:
        """Run the command flwr."""
        done = subprocess.run(
            [str(BIN / "flwr"), *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def supernode(self, name: str, *, key: str | None = None, security: tuple[str, ...] | None = None) -> str:
        """Start a node; return the name of its process."""
        if security is None:
            security = ("--root-certificates", str(self.keys / "ca.crt"))
        process = f"node-{name}-{key or name}-{len(security)}"
        self.start(
            process,
            "flower-supernode",
            *security,
            *("--superlink", f"127.0.0.1:{self.port}"),
            *("--auth-supernode-private-key", str(self.keys / f"{key or name}.key")),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f'worker="{name}"'),
        )
        return process

    def run(self, **config: Any) -> str:
        """Start a run of the app; return its number."""
        words = {"workers": len(self.nodes), "out": str(self.folder / "out"), **config}
        text = " ".join(f"{name.replace('_', '-')}={_toml(value)}" for name, value in words.items())
        said = self.flwr("run", str(self.app), "trial", "--run-config", text)
        return said.partition("started run ")[2].split()[0]

    def until(self, done: Any, seconds: float, what: str) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                logs = "\n".join(
                    f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log")
                )
                raise AssertionError(f"{what} after {seconds:g} s\n{logs}")
            time.sleep(0.2)

    def rounds(self) -> int:
        """Return how many rounds the run has done."""
        path = self.folder / "out" / "trace.csv"
        return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
