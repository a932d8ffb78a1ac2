"""Bytes to the same accuracy over Flower: its FedAvg, laziness, a codec, and both. Four nodes, real processes, TLS.

    python benchmarks/versus_fedavg.py --data-dir DIR --tune      # choose steps and laziness by simulation: minutes
    python benchmarks/versus_fedavg.py --data-dir DIR             # the real processes, as root: an hour or more

Every node is a SuperNode in a network namespace of its own, with TLS, a registered key, and a quarter of MNIST sorted
by label. All methods train the paper's CNN from the same start on the same minibatches, H local steps a round, until
the accuracy on 2,500 of MNIST's test images is that of --target. Each has the step, and the laziness, with which the
simulation needs the fewest uploads; with a codec it has those of its dense twin. Megabytes are what the kernel counted
on the nodes' interfaces: the polls, TLS and Flower's envelopes are in them. A row that is in results is not run again.

ClientApps are forked from a process that has torch imported (benchmarks/warm.py); with --cold they start as Flower
starts them.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import warm
from deployment import Deployment, Host
from namespaces import ip

from lasg.data.loaders import load
from lasg.errors import LasgError
from lasg.flower.storage import RoundLog
from lasg.report.paper_tables import to_csv

NODES, BATCH, D = 4, 32, 50
STEPS = (1, 5, 20, 80)
ETAS = {1: (0.2, 0.3, 0.5), 5: (0.1, 0.2, 0.3), 20: (0.1, 0.2), 80: (0.05, 0.1, 0.2), 320: (0.1, 0.2)}
"""What is tried, by local steps a round; the last is simulated only."""
LAZINESS = (0.1, 0.5)
CAP = {1: 400, 5: 150, 20: 60, 80: 40, 320: 20}
"""Rounds after which a run is given up."""
DEVICE, BRIDGE = "lasgnode", "lasgbridge"
APP = Path(__file__).parent / "mnist_app"
RESULTS = Path(__file__).parent.parent / "results"


class Method(NamedTuple):
    """What is compared."""

    name: str
    rule: str
    codec: str

    @property
    def components(self) -> str:
        """Which apps run it."""
        return "lazy" if self.rule else "fedavg"


class Job(NamedTuple):
    """A method, local steps a round, and the step and laziness that were chosen for them."""

    method: Method
    steps: int
    eta: float
    c: float


METHODS = (
    Method("fedavg", "", ""),
    Method("wk2", "wk2", "dense"),
    Method("pse", "pse", "dense"),
    Method("8 bits", "always", "qsgd8:512"),
    Method("wk2, 8 bits", "wk2", "qsgd8:512"),
)

# -- the network -----------------------------------------------------------------------------------------------------


@contextmanager
def network(lane: int) -> Iterator[tuple[Host, list[Host]]]:
    """Make a namespace for the server and one for every node, joined by a bridge; remove them."""
    prefix = f"lasg{os.getpid()}-{lane}"
    hub, names = f"{prefix}-hub", [f"{prefix}-{m}" for m in range(NODES)]

    def address(host: int) -> str:
        return f"10.78.{lane}.{host}"

    def inside(name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", name)

    try:
        for name in (hub, *names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", hub, "link", "add", BRIDGE, "type", "bridge")
        ip("-n", hub, "addr", "add", f"{address(254)}/24", "dev", BRIDGE)
        ip("-n", hub, "link", "set", BRIDGE, "up")
        for m, name in enumerate(names):
            ip("-n", hub, "link", "add", f"to{m}", "type", "veth", "peer", "name", DEVICE, "netns", name)
            ip("-n", hub, "link", "set", f"to{m}", "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"{address(m + 1)}/24", "dev", DEVICE)
            ip("-n", name, "link", "set", DEVICE, "up")
        yield Host(inside(hub), address(254)), [Host(inside(name)) for name in names]
    finally:
        for name in (hub, *names):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def carried(hosts: list[Host]) -> tuple[int, int]:
    """Return the bytes that the nodes' interfaces sent and received, as the kernel counts them."""
    up = down = 0
    for host in hosts:
        text = subprocess.run([*host.before, "cat", "/proc/net/dev"], check=True, capture_output=True, text=True).stdout
        numbers = text.partition(f"{DEVICE}:")[2].split()
        down, up = down + int(numbers[0]), up + int(numbers[8])
    return up, down


# -- data ------------------------------------------------------------------------------------------------------------


def write_data(folder: Path, data_dir: Path | None) -> None:
    """Write a file for every node, MNIST sorted by label and cut in four, and every fourth of its test images."""
    found = load("mnist", data_dir=data_dir)
    order = np.argsort(found.labels, kind="stable")
    parts = {f"node-{m}": (found.features, found.labels, rows) for m, rows in enumerate(np.array_split(order, NODES))}
    assert found.test_features is not None
    assert found.test_labels is not None
    parts["test"] = (found.test_features, found.test_labels, np.arange(0, len(found.test_labels), 4))
    for name, (features, labels, rows) in parts.items():
        x = np.asarray(features)[rows]
        x = x if x.max() > 1 else 255 * x
        np.savez(folder / f"{name}.npz", x=x.round().astype(np.uint8), y=np.asarray(labels)[rows].astype(np.int64))


# -- steps, chosen by simulation ---------------------------------------------------------------------------------------


def every(steps: int) -> int:
    """Return after how many rounds the accuracy is measured."""
    return max(1, 5 // steps)


def simulated(rule: str, steps: int, c: float, target: float, data: str) -> list[dict[str, Any]]:
    """Return uploads to the target by step; a run that needs more than the best so far is given up."""
    import torch
    from torch.nn.functional import cross_entropy

    from lasg import ModuleProblem
    from lasg.core.optimizers import ClosedFormSGD, Constant
    from lasg.core.rules import RULES
    from lasg.core.server import Laziness
    from lasg.transports.local import simulate

    torch.set_num_threads(1)
    sys.path.append(str(APP))
    from mnistapp.task import PIXELS, images, model

    inputs, labels = zip(*(images(f"{data}/node-{m}.npz") for m in range(NODES)), strict=True)
    x, y, test = torch.cat(inputs), torch.cat(labels), images(f"{data}/test.npz")
    shards = np.split(np.arange(len(y)), np.cumsum([len(part) for part in labels])[:-1])
    found: list[dict[str, Any]] = []
    best = NODES * CAP[steps]
    for eta in ETAS[steps]:
        batch = BATCH / len(shards[0])
        problem = ModuleProblem(model(), cross_entropy, (x, y), shards, batch=batch, test=test, transform=PIXELS)
        run = simulate(
            problem,
            ClosedFormSGD(problem.start(), Constant(eta)),
            rule=RULES[rule],
            laziness=Laziness(workers=NODES, D=D, c=c),
            local_steps=steps,
        )
        accuracy = 0.0
        try:
            for k in range(1, CAP[steps] + 1):
                run.step()
                if k % every(steps) == 0:
                    accuracy = problem.accuracy(run.theta) or 0.0
                    if accuracy >= target or run.ledger.uploads > best:
                        break
        except LasgError as error:  # it diverges
            accuracy = 0.0
            print(f"{rule}, H = {steps}, c = {c}, eta = {eta}: {error}", file=sys.stderr, flush=True)
        reached = accuracy >= target
        best = min(best, run.ledger.uploads) if reached else best
        row = {"rule": rule, "local_steps": steps, "c": c, "eta": eta, "reached": reached, "rounds": k}
        found.append({**row, "uploads": run.ledger.uploads, "accuracy": round(accuracy, 4)})
        print(found[-1], file=sys.stderr, flush=True)
    return found


def tune(options: argparse.Namespace, data: Path) -> None:
    """Try all steps in simulation, and write what they need; what is written already is kept."""
    rows, path = stored(options.tuned), options.tuned
    there = {(row["rule"], int(row["local_steps"]), float(row["c"])) for row in rows}
    combinations = [("always", LAZINESS[0]), *((rule, c) for rule in ("wk2", "pse") for c in LAZINESS)]
    wanted = {method.rule or "always" for method in METHODS if method.name in (options.methods or [method.name])}
    grid = [(rule, steps, c) for steps in options.steps for rule, c in combinations if rule in wanted]
    jobs = [job for job in grid if job not in there]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(simulated, *job, options.target, str(data)) for job in jobs]):
            rows += future.result()
            rows.sort(key=lambda row: (int(row["local_steps"]), row["rule"], float(row["c"]), float(row["eta"])))
            path.write_text(to_csv(rows))


def chosen(path: Path, rule: str, steps: int) -> tuple[float, float] | None:
    """Return the step and the laziness with the fewest uploads; None if none was found yet."""
    found = [row for row in stored(path) if (row["rule"], row["local_steps"]) == (rule or "always", str(steps))]
    reached = [row for row in found if row["reached"] == "True"]
    if not reached:
        return None
    row = min(reached, key=lambda row: int(row["uploads"]))
    return float(row["eta"]), float(row["c"])


# -- a run -----------------------------------------------------------------------------------------------------------


class Lane:
    """One deployment, in which runs follow each other."""

    def __init__(self, number: int, options: argparse.Namespace, data: Path) -> None:
        self.number, self.options, self.data = number, options, data

    def work(self, jobs: queue.Queue[Job], done: Any) -> None:
        """Do jobs until there are none."""
        with network(self.number) as (server, hosts), tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            apps = {kind: _app(folder, kind) for kind in ("lazy", "fedavg")}
            with Deployment(folder, NODES, apps["lazy"], server=server, hosts=hosts, durable=False) as deployed:
                deployed.superlink()
                deployed.register()
                for m, host in enumerate(hosts):
                    self._node(deployed, m, host)
                while True:
                    try:
                        job = jobs.get_nowait()
                    except queue.Empty:
                        return
                    deployed.app = apps[job.method.components]
                    done(self._run(deployed, hosts, job))

    def _node(self, deployed: Deployment, m: int, host: Host) -> None:
        """Start a node, and what forks its ClientApps."""
        environment = {}
        if not self.options.cold:
            socket = deployed.folder / f"warm-{m}.sock"
            deployed.start(f"warm-{m}", "python", str(Path(warm.__file__)), str(socket), host=host)
            deployed.until(socket.exists, 60, "no process to fork ClientApps from")
            path = f"{warm.shim(deployed.folder / 'bin')}:{deployed.environment['PATH']}"
            environment = {"LASG_WARM": str(socket), "PATH": path}
        deployed.supernode(str(m), config={"data": str(self.data / f"node-{m}.npz")}, environment=environment)

    def _run(self, deployed: Deployment, hosts: list[Host], job: Job) -> dict[str, Any]:
        """Train to the target, or until the limit of rounds."""
        options, (method, steps, eta, c) = self.options, job
        out = deployed.folder / f"{method.name.replace(', ', '-').replace(' ', '')}-{steps}"
        config = {"rule": method.rule, "codec": method.codec} if method.rule else {}
        time.sleep(5)  # what is left of the run before
        before, began = carried(hosts), time.monotonic()
        run = deployed.run(
            out=str(out),
            rounds=CAP[steps],
            local_steps=steps,
            eta=eta,
            c=c,
            D=D,
            batch=BATCH,
            evaluate_every=every(steps),
            test=str(self.data / "test.npz"),
            **config,
        )
        row: dict[str, str] = {}
        while True:
            found = _last(out / "trace.csv")
            if found and found != row:
                row = found
                up, down = (after - first for after, first in zip(carried(hosts), before, strict=True))
                said = f"round {row['round']}, {row['uploads_so_far']} uploads, accuracy {row['accuracy']}"
                print(f"{method.name}, H = {steps}: {said}, {up / 1e6:.1f} MB up", file=sys.stderr, flush=True)
                if float(row["accuracy"]) >= options.target or int(row["round"]) >= CAP[steps]:
                    break
            if time.monotonic() - began > options.hours * 3600:
                raise SystemExit(f"{method.name}, H = {steps} has taken {options.hours} hours")
            time.sleep(0.2)
        seconds = time.monotonic() - began
        if int(row["round"]) < CAP[steps]:
            deployed.stop(run)
        counted = [float(row[name]) / 1e6 if row.get(name) else None for name in ("bytes_up", "bytes_down")]
        return {
            "method": method.name,
            "local_steps": steps,
            "eta": eta,
            "c": c if method.rule not in ("", "always") else None,
            "target": options.target,
            "accuracy": round(float(row["accuracy"]), 4),
            "reached": float(row["accuracy"]) >= options.target,
            "rounds": int(row["round"]),
            "uploads": int(row["uploads_so_far"]),
            "megabytes_up": round(up / 1e6, 2),
            "megabytes_down": round(down / 1e6, 2),
            "counted_up": None if counted[0] is None else round(counted[0], 2),
            "counted_down": None if counted[1] is None else round(counted[1], 2),
            "seconds": round(seconds),
        }


def _app(folder: Path, kind: str) -> Path:
    """Copy the app, with the components of a kind."""
    target = folder / kind
    shutil.copytree(APP, target, ignore=shutil.ignore_patterns("__pycache__"))
    project = target / "pyproject.toml"
    project.write_text(project.read_text().replace("mnistapp.lazy_", f"mnistapp.{kind}_"))
    return target


def _last(path: Path) -> dict[str, str]:
    """Return the last round that was measured."""
    return next((row for row in reversed(RoundLog(path).lines()) if row["accuracy"]), {})


# -- the command -----------------------------------------------------------------------------------------------------


def stored(path: Path) -> list[dict[str, Any]]:
    """Return the rows that are there already."""
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows by local steps, methods in their order."""
    names = [method.name for method in METHODS]
    return sorted(rows, key=lambda row: (int(row["local_steps"]), names.index(row["method"])))


def table(rows: list[dict[str, Any]]) -> None:
    """Print megabytes, and how many times fewer than FedAvg's with the same H and with its best H."""
    reached = [row for row in rows if str(row["reached"]) == "True"]
    theirs = {int(row["local_steps"]): float(row["megabytes_up"]) for row in reached if row["method"] == "fedavg"}
    best = min(theirs.values(), default=None)
    print(f"{'method':14} {'H':>3} {'rounds':>6} {'uploads':>7} {'MB up':>8} {'MB down':>8}  same H  best H")
    for row in ordered(rows):
        up, steps = float(row["megabytes_up"]), int(row["local_steps"])
        same, fewest = ("     -" if one is None else f"{one / up:5.2f}x" for one in (theirs.get(steps), best))
        numbers = f"{row['rounds']:>6} {row['uploads']:>7} {up:8.1f} {float(row['megabytes_down']):8.1f}"
        note = "" if row in reached else f"  not reached: {row['accuracy']}"
        print(f"{row['method']:14} {steps:3} {numbers}  {same}  {fewest}{note}")


def main() -> None:
    """Choose steps, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where MNIST is")
    parser.add_argument("--csv", type=Path, default=RESULTS / "versus-fedavg.csv", help="where the table is written")
    parser.add_argument("--tuned", type=Path, default=RESULTS / "versus-fedavg-steps.csv", help="and the steps")
    parser.add_argument("--tune", action="store_true", help="choose the steps by simulation")
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, choices=ETAS, help="local steps a round")
    parser.add_argument("--methods", nargs="+", choices=[method.name for method in METHODS], metavar="METHOD")
    parser.add_argument("--target", type=float, default=0.95, help="the accuracy to reach")
    parser.add_argument("--hours", type=float, default=3.0, help="hours after which a run is given up")
    parser.add_argument("--lanes", type=int, default=1, help="runs at the same time, each with its own network")
    parser.add_argument("--cold", action="store_true", help="start every ClientApp again, as Flower does")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name), options.data_dir)
        if options.tune:
            tune(options, Path(name))
            return
        compare(options, Path(name))


def compare(options: argparse.Namespace, data: Path) -> None:
    """Run what is missing, and print the table."""
    rows = stored(options.csv)
    there = {(row["method"], int(row["local_steps"])) for row in rows}
    jobs: queue.Queue[Job] = queue.Queue()
    for steps in options.steps:
        for method in METHODS:
            if (method.name, steps) not in there and method.name in (options.methods or [method.name]):
                best = chosen(options.tuned, method.rule, steps)
                if best is None:
                    print(f"{method.name}, H = {steps} is left out: it has no step yet, --tune", file=sys.stderr)
                else:
                    jobs.put(Job(method, steps, *best))
    lock = threading.Lock()

    def done(row: dict[str, Any]) -> None:
        with lock:
            rows.append(row)
            options.csv.write_text(to_csv(ordered(rows)))

    if not jobs.empty():
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise SystemExit("network namespaces need root and the command ip")
        lanes = [Lane(number, options, data) for number in range(min(options.lanes, jobs.qsize()))]
        threads = [threading.Thread(target=lane.work, args=(jobs, done)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table(rows)


if __name__ == "__main__":
    main()
