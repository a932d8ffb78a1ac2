"""Ranks that come and go, on four hosts with slow links: what kills, cut links and slow ranks cost the others.

    python benchmarks/elastic.py --data-dir DIR                          # all scenarios, 50 Mbit/s and 20 ms, as root
    python benchmarks/elastic.py --data-dir DIR --scenarios kills slow --seconds 60
    python benchmarks/elastic.py --data-dir DIR --scenarios churn --changes 200

The hosts are network namespaces (namespaces.py); a fifth one has torchft's lighthouse. Every rank trains the paper's
CNN on its quarter of MNIST, sorted by label, 20 local steps per round. A step takes at least 25 ms, so that four hosts
share two cores without waiting for each other. A process on each host forks the ranks, so that starting one again costs
the time that it takes to join, and not the imports. Goodput is the rounds that ended, over those of `undisturbed` in as
long.
`torchft diloco` is torchft's own DiLoCo with dense moves, on the same hosts.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from namespaces import DEVICE, LOST, Link, Network, hosts, require_root

RANKS, LIGHTHOUSE = 4, 4
"""Ranks, and the host of the lighthouse."""
PORT = 29510
EVERY, BATCH, LR, STEP = 20, 30, 0.05, 0.025
KILL_EVERY, REVIVE_AFTER = 20.0, 10.0
CUT = 15.0
HEARTBEAT, JOIN, TIMEOUT = 2.0, 2.0, 3.0
"""Seconds: the lighthouse's, and the ranks' timeout."""
METHODS = ("lasg", "torchft diloco")
SCENARIOS = ("undisturbed", "kills", "cut", "slow", "churn")
FIELDS = (
    "method", "scenario", "seconds", "rounds", "round_seconds", "goodput", "events", "longest_gap_median",
    "longest_gap_max", "cost_seconds_median", "away_seconds_median", "loss", "same_bits",
)  # fmt: skip


# -- a host --------------------------------------------------------------------------------------------------------


def agent(options: argparse.Namespace) -> None:
    """On a host: fork a rank when told to, and kill it."""
    import numpy as np
    import torch

    from lasg.data.loaders import load
    from lasg.problems import models
    from lasg.transports.elastic_group import require_torchft

    torch.set_num_threads(1)
    require_torchft()
    os.environ["GLOO_SOCKET_IFNAME"] = DEVICE
    found = load("mnist", data_dir=Path(options.data_dir) if options.data_dir else None)
    order = np.argsort(found.labels, kind="stable")
    mine = np.array_split(order, RANKS)[options.host]
    x = torch.tensor(found.features[mine], dtype=torch.float32).reshape(-1, 1, 28, 28)
    x = x / max(1.0, float(x.max()))
    y = torch.tensor(found.labels[mine], dtype=torch.int64)
    some = np.random.default_rng(0).choice(len(found.labels), 500, replace=False)
    sample = torch.tensor(found.features[some], dtype=torch.float32).reshape(-1, 1, 28, 28)
    check = sample / max(1.0, float(sample.max())), torch.tensor(found.labels[some], dtype=torch.int64)
    model = models.model("cnn", (1, 28, 28), 10, 0)
    child = 0
    say({"ready": options.host})
    for line in sys.stdin:
        order_given = json.loads(line)
        if order_given["do"] == "kill" and child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child = 0
        elif order_given["do"] == "start":
            child = os.fork()
            if child == 0:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it dies with the agent
                try:
                    train(options, order_given, model, x, y, check)
                except Exception:
                    traceback.print_exc()
                finally:
                    os._exit(0)
    if child:
        os.kill(child, signal.SIGKILL)


def say(what: dict[str, Any]) -> None:
    """Tell the benchmark something, in one write."""
    os.write(1, (json.dumps(what) + "\n").encode())


def train(options: argparse.Namespace, given: dict[str, Any], model: Any, x: Any, y: Any, check: Any) -> None:
    """Train, as one of the ranks, until it is killed."""
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    draws = torch.Generator().manual_seed(int(time.time() * 1000) % 2**31)
    pace = STEP * given.get("slower", 1)

    def step() -> None:
        began = time.monotonic()
        chosen = torch.randint(0, len(y), (BATCH,), generator=draws)
        optimizer.zero_grad()
        cross_entropy(model(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        time.sleep(max(0.0, pace - (time.monotonic() - began)))

    def loss() -> float:
        with torch.no_grad():
            return float(cross_entropy(model(check[0]), check[1]))

    wait_until(lambda: answers(options.lighthouse), 60)
    if given["method"] == "lasg":
        train_lasg(options, given, model, optimizer, step, loss)
    else:
        train_torchft(options, model, optimizer, step)


def train_lasg(options: Any, given: dict[str, Any], model: Any, optimizer: Any, step: Any, loss: Any) -> None:
    """Train with lasg.elastic; with `stay`, leave without a word after so many seconds and come back, for ever."""
    import lasg

    while True:
        settings: dict[str, Any] = {"lighthouse": options.lighthouse, "name": f"host{options.host}", "every": EVERY}
        loop = lasg.elastic(model, optimizer, **settings, timeout=TIMEOUT, record=given.get("record"))
        loop.listeners.append(
            lambda closed: say(
                {"host": options.host, "k": closed.k, "at": time.time(), "in": closed.members, "spoke": closed.spoke}
            )
        )
        loop.join()
        end = time.monotonic() + given.get("stay", 1e9)
        rounds = loop.rounds
        while time.monotonic() < end:
            step()
            if options.host == 0 and loop.rounds >= rounds + 20:
                rounds = loop.rounds
                say({"loss": loss()})
        loop.release()
        time.sleep(given.get("away", 0.0))


def train_torchft(options: Any, model: Any, optimizer: Any, step: Any) -> None:
    """Train with torchft's DiLoCo."""
    from datetime import timedelta

    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    from lasg.transports.elastic_group import own_address

    address = own_address(options.lighthouse)
    socket.gethostname = lambda: address  # what torchft tells the others
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=TIMEOUT)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), outer.load_state_dict(state["outer"])),
        state_dict=lambda: {"model": model.state_dict(), "outer": outer.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=limit,
        quorum_timeout=timedelta(seconds=30),
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        replica_id=f"host{options.host}",
        hostname=address,
    )
    with DiLoCo(manager, [model], optimizer, outer, sync_every=EVERY, pin_memory=False):
        before = 0
        while True:
            step()
            if manager.current_step() != before:
                before = manager.current_step()
                say({"host": options.host, "k": before, "at": time.time(), "in": [manager.num_participants()]})


# -- the benchmark -------------------------------------------------------------------------------------------------


class Field:
    """The hosts, and what their ranks say."""

    def __init__(self, options: argparse.Namespace, network: Network) -> None:
        self.network, self.options = network, options
        self.at = f"http://{network.address(LIGHTHOUSE)}:{PORT}"
        self.rounds: dict[int, list[dict[str, Any]]] = {host: [] for host in range(RANKS)}
        self.losses: list[float] = []
        self.ready: set[int] = set()
        self._lighthouse: subprocess.Popen[bytes] | None = None
        own = [sys.executable, __file__, "--lighthouse", self.at]
        own += ["--data-dir", options.data_dir] if options.data_dir else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RUST_LOG": "error"}
        self.agents: list[Any] = []
        for host in range(RANKS):
            command = [*network.command(host), *own, "--host", str(host)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
            self.agents.append(subprocess.Popen(command, **pipes, stderr=None if options.loud else subprocess.DEVNULL))
            threading.Thread(target=self._listen, args=(self.agents[-1],), daemon=True).start()
        wait_until(lambda: len(self.ready) == RANKS, 400)

    def _listen(self, process: Any) -> None:
        for line in process.stdout:
            said = json.loads(line)
            if "ready" in said:
                self.ready.add(said["ready"])
            elif "loss" in said:
                self.losses.append(said["loss"])
            else:
                self.rounds[said["host"]].append(said)

    def begin(self, method: str, **more: Any) -> None:
        """Start a lighthouse and all ranks; return once all take part."""
        self._stop_lighthouse()
        self.rounds = {host: [] for host in range(RANKS)}
        self.losses = []
        command = [*self.network.command(LIGHTHOUSE), "torchft_lighthouse", "--bind", f"0.0.0.0:{PORT}"]
        command += [
            "--min_replicas",
            "1",
            "--quorum_tick_ms",
            "50",
            "--heartbeat_timeout_ms",
            str(int(1e3 * HEARTBEAT)),
        ]
        command += ["--join_timeout_ms", str(int(1e3 * JOIN))]
        self._lighthouse = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "RUST_LOG": "error"})
        for host in range(RANKS):
            self.tell(host, "start", method=method, **more.get(f"host{host}", {}))
        wait_until(lambda: all(self.rounds[host] for host in range(RANKS)), 60)
        wait_until(lambda: self.members(0) == RANKS, 60)
        time.sleep(3.0)

    def members(self, host: int) -> int:
        """Return how many members a host saw in its last round."""
        there = self.rounds[host][-1]["in"] if self.rounds[host] else []
        return int(there[0]) if there and isinstance(there[0], int) else len(there)

    def tell(self, host: int, do: str, **more: Any) -> None:
        """Tell a host's agent to start or kill its rank."""
        self.agents[host].stdin.write((json.dumps({"do": do, **more}) + "\n").encode())
        self.agents[host].stdin.flush()

    def end(self) -> None:
        """Kill all ranks and the lighthouse."""
        for host in range(RANKS):
            self.tell(host, "kill")
        self._stop_lighthouse()

    def _stop_lighthouse(self) -> None:
        if self._lighthouse is not None:
            self._lighthouse.kill()
            self._lighthouse.wait()
            self._lighthouse = None

    def close(self) -> None:
        """End everything."""
        self._stop_lighthouse()
        for process in self.agents:
            process.stdin.close()
            process.kill()

    def between(self, host: int, start: float, end: float) -> list[float]:
        """Return when the rounds that a host saw in this time ended."""
        return [said["at"] for said in self.rounds[host] if start <= said["at"] < end]


def wait_until(done: Any, seconds: float) -> None:
    """Wait for something, or give up."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("the ranks did not come: run with --loud")
        time.sleep(0.05)


def answers(lighthouse: str) -> bool:
    """Tell whether the lighthouse is there by now."""
    place = urlsplit(lighthouse)
    try:
        socket.create_connection((place.hostname, place.port), 2.0).close()
    except OSError:
        return False
    return True


def gaps(times: list[float]) -> list[float]:
    """Return the seconds between rounds."""
    return [after - before for before, after in itertools.pairwise(times)]


def measure(field: Field, method: str, scenario: str, seconds: float, usual: float | None) -> dict[str, Any]:
    """Run a scenario; return its row."""
    slow = {"slower": 10} if scenario == "slow" else {}
    field.begin(method, host3=slow)
    start = time.time()
    events: list[tuple[float, int, float]] = []
    while time.time() - start < seconds:
        left = seconds - (time.time() - start)
        host = 1 + len(events) % (RANKS - 1)
        if scenario == "kills" and left > REVIVE_AFTER + 2:
            events.append((time.time(), host, REVIVE_AFTER))
            field.tell(host, "kill")
            time.sleep(REVIVE_AFTER)
            field.tell(host, "start", method=method)
            time.sleep(min(KILL_EVERY - REVIVE_AFTER, max(0.0, seconds - (time.time() - start))))
        elif scenario == "cut" and left > CUT + 10:
            events.append((time.time(), host, CUT))
            field.network.change(host, LOST)
            time.sleep(CUT)
            field.network.change(host, link(field.options))
            time.sleep(min(20.0, max(0.0, seconds - (time.time() - start))))
        else:
            time.sleep(min(left, 1.0))
    row = summary(field, events, start, seconds, usual)
    field.end()
    return {"method": method, "scenario": scenario, **row}


def summary(
    field: Field, events: list[tuple[float, int, float]], start: float, seconds: float, usual: float | None
) -> dict[str, Any]:
    """Return what host 0, to which nothing happens, saw."""
    times = field.between(0, start, start + seconds)
    median = statistics.median(gaps(times)) if len(times) > 2 else float("nan")
    longest, away = [], []
    for at, host, lasting in events:
        near = gaps(field.between(0, at - 3 * (usual or median), at + lasting * 0.9))
        longest.append(max(near, default=lasting))
        back = [said["at"] for said in field.rounds[host] if said["at"] > at + lasting]
        if back:  # the benchmark may end before
            away.append(min(back) - at - lasting)
    row: dict[str, Any] = {"seconds": round(seconds, 1), "rounds": len(times), "round_seconds": round(median, 3)}
    if usual:
        row["goodput"] = round(len(times) * usual / seconds, 3)
    if events:
        row |= {
            "events": len(events),
            "longest_gap_median": round(statistics.median(longest), 2),
            "longest_gap_max": round(max(longest), 2),
            "cost_seconds_median": round(statistics.median(longest) - (usual or median), 2),
            "away_seconds_median": round(statistics.median(away), 2) if away else "",
        }
    if field.losses:
        row["loss"] = round(field.losses[-1], 3)
    return row


def churn(field: Field, folder: Path, changes: int, limit: float) -> dict[str, Any]:
    """Let ranks leave without a word and come back, over and over; compute the model again from host 0's record."""
    from lasg.runs.elastic_replay import replay

    stays = {f"host{host}": {"stay": 3.0 + host, "away": 2.5} for host in range(1, RANKS)}
    field.begin("lasg", host0={"record": str(folder)}, **stays)
    start, seen, before = time.time(), 0, None
    while seen < changes and time.time() - start < limit:
        time.sleep(1.0)
        seen, before = 0, None
        for said in list(field.rounds[0]):
            now = set(said["in"])
            seen, before = seen + len(now ^ (before if before is not None else now)), now
    field.end()
    found = replay(folder)
    row = summary(field, [], start, time.time() - start, None)
    return {"method": "lasg", "scenario": "churn", **row, "events": found.joins + found.leaves, "same_bits": True}


def link(options: argparse.Namespace) -> Link:
    """Return a host's link."""
    return Link(options.rate * 1e6, options.delay / 1e3)


def main() -> None:
    """Run the scenarios, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50.0, help="Mbit/s of every host, each way")
    parser.add_argument("--delay", type=float, default=20.0, help="round trip in ms")
    parser.add_argument("--seconds", type=float, default=60.0, help="of every scenario")
    parser.add_argument("--changes", type=int, default=200, help="joins and leaves of the churn")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which the churn ends")
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), choices=SCENARIOS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD")
    parser.add_argument("--data-dir", help="where MNIST is")
    parser.add_argument("--csv", type=Path, help="also add the rows to this file")
    parser.add_argument("--loud", action="store_true", help="show what the ranks write")
    for name in ("--host", "--lighthouse"):
        parser.add_argument(name, type=int if name == "--host" else str, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host is not None:
        agent(options)
        return
    require_root()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with hosts([link(options)] * (RANKS + 1)) as network, names(network):
        field = Field(options, network)
        try:
            run(field, options)
        finally:
            field.close()


@contextmanager
def names(network: Network) -> Iterator[None]:
    """Give the hosts names: no name server answers in a namespace, and torch asks for the names of addresses."""
    table = "".join(f"{network.address(host)} host{host}\n" for host in range(RANKS + 1))
    folders = [Path("/etc/netns") / name for name in network.names]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
    try:
        yield
    finally:
        for folder in folders:
            shutil.rmtree(folder)


def run(field: Field, options: argparse.Namespace) -> None:
    """Run the scenarios of every method."""
    import tempfile

    for method in options.methods:
        usual: float | None = None
        for scenario in options.scenarios:
            if scenario == "churn":
                if method != "lasg":
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    row = churn(field, Path(folder) / "record", options.changes, options.limit)
            else:
                row = measure(field, method, scenario, options.seconds, usual)
            if scenario == "undisturbed":
                usual = options.seconds / row["rounds"]
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            if options.csv:
                new = not options.csv.exists()
                with options.csv.open("a") as file:
                    if new:
                        file.write(",".join(FIELDS) + "\n")
                    file.write(",".join(str(row.get(name, "")) for name in FIELDS) + "\n")


if __name__ == "__main__":
    main()
