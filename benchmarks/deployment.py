"""A federation of real processes on this machine: SuperLink and SuperNodes, with TLS and keys, as in earnest."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lasg.errors import LasgError
from lasg.flower import keys

BIN = Path(sys.executable).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""}
NAME = "trial"
"""Of the SuperLink, in Flower's configuration."""


class Host(NamedTuple):
    """Where a process runs: what stands before its command, and the address that it listens on."""

    before: tuple[str, ...] = ()
    address: str = "127.0.0.1"


HERE = Host()


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Deployment:
    """Starts and stops everything; what it prints is in files in its folder."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        app: Path,
        *,
        server: Host = HERE,
        hosts: Sequence[Host] = (),
        environment: Mapping[str, str] | None = None,
        durable: bool = True,
    ) -> None:
        """Make keys and certificates in a new folder; `hosts` are the nodes', this machine's loopback by default.

        What the SuperLink knows survives it if it is durable.
        """
        self.folder, self.keys, self.app, self.server = folder, folder / "keys", app, server
        self.durable = durable
        self.nodes = [str(m) for m in range(nodes)]
        self.hosts = dict(zip(self.nodes, hosts or [HERE] * nodes, strict=True))
        keys.create(self.keys, ["localhost", server.address], [*self.nodes, "stranger"])
        self.port = free_port()
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{server.address}:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )
        path = f"{BIN}:{os.environ['PATH']}"
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(self.home), "PATH": path, **(environment or {})}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.kill(name)
        self.kill_all()

    def start(
        self, name: str, *command: str, host: Host = HERE, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*host.before, str(BIN / command[0]), *command[1:]],
                env={**self.environment, **(environment or {})},
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

    def kill_all(self, command: str = "") -> int:
        """Kill every process of this federation that runs a command, or all of them; return how many."""
        mark, killed = f"FLWR_HOME={self.home}".encode(), 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
                ours = mark in (folder / "environ").read_bytes().split(b"\0")
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if ours and any(word.endswith(command.encode()) for word in words):
                    os.kill(int(folder.name), signal.SIGKILL)
                    killed += 1
        return killed

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
            *("--host", self.server.address, "--port", str(self.port)),
            *(("--database", str(self.folder / "superlink.db")) if self.durable else ()),
            *("--ssl-ca-certfile", ca, "--ssl-certfile", own, "--ssl-keyfile", key),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            host=self.server,
        )
        self.until(self._listens, 60, "the SuperLink does not listen")

    def _listens(self) -> bool:
        look = f"import socket; socket.create_connection(({self.server.address!r}, {self.port}), 5)"
        words = [*self.server.before, sys.executable, "-c", look]
        found = subprocess.run(words, check=False, capture_output=True)
        return found.returncode == 0

    def register(self) -> None:
        """Tell the SuperLink the nodes' public keys."""
        for name in self.nodes:
            self.flwr("supernode", "register", str(self.keys / f"{name}.pub"), NAME)

    def flwr(self, *words: str, seconds: float = 60) -> str:
        """Run the command flwr."""
        done = subprocess.run(
            [*self.server.before, str(BIN / "flwr"), *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise LasgError(f"flwr {words[0]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def supernode(
        self,
        name: str,
        *,
        key: str | None = None,
        security: tuple[str, ...] | None = None,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Start a node; return the name of its process."""
        if security is None:
            security = ("--root-certificates", str(self.keys / "ca.crt"))
        process = f"node-{name}-{key or name}-{len(security)}"
        self.start(
            process,
            "flower-supernode",
            *security,
            *("--superlink", f"{self.server.address}:{self.port}"),
            *("--auth-supernode-private-key", str(self.keys / f"{key or name}.key")),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", _toml({"worker": name, **(config or {})})),
            host=self.hosts[name],
            environment=environment,
        )
        return process

    def run(self, **config: Any) -> str:
        """Start a run of the app; return its number."""
        words = {"workers": len(self.nodes), "out": str(self.folder / "out"), **config}
        said = self.flwr("run", str(self.app), NAME, "--run-config", _toml(words))
        return said.partition("started run ")[2].split()[0]

    def stop(self, run: str) -> None:
        """Stop a run."""
        self.flwr("stop", run, NAME)

    def until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                logs = "\n".join(
                    f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log")
                )
                raise LasgError(f"{what} after {seconds:g} s\n{logs}")
            time.sleep(0.2)


def _toml(values: Mapping[str, Any]) -> str:
    """Return settings as Flower's commands take them."""
    words = []
    for name, value in values.items():
        text = f'"{value}"' if isinstance(value, str) else str(value).lower()
        words.append(f"{name.replace('_', '-')}={text}")
    return " ".join(words)
