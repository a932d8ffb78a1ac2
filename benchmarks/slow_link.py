"""Training over slow links: lasg beside what PyTorch has. Four hosts on one machine, in network namespaces.

    python benchmarks/slow_link.py --data-dir DIR tune                 # steps of every method, on the bare loopback
    python benchmarks/slow_link.py --data-dir DIR race                 # three links, as root
    python benchmarks/slow_link.py show

Two tasks: the paper's CNN on MNIST sorted by label, to a loss of .3 and of .1, and a character transformer on text,
one part of it per rank, to 2.3. All methods train from one start on the same minibatches, and every one had the same
number of trials of its step on the loopback. The step that took the fewest iterations to a loss is the one that races
to it. The network between the hosts is in namespaces.py. The clock and the counters of the interfaces stand still while
the loss is measured, which goes through files. Rows are added to the tables run by run, and what is there is not run
again; `--again` replaces a row, but never one that arrived by one that did not.
"""

from __future__ import annotations

import argparse
import copy
import csv
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from namespaces import DEVICE, Link, Network, carried, hosts, require_root

ROOT = Path(__file__).parent.parent
RANKS, LOOPBACK, MTU = 4, "lo", 9000
LINKS = {
    "unshaped": None,
    "50 Mbit/s, 20 ms": Link(50e6, 0.02),
    "10 Mbit/s, 50 ms": Link(10e6, 0.05),
    "2 Mbit/s, 100 ms, 1 % loss": Link(2e6, 0.1, 0.01),
}
"""Each host's, each way; the round trip between two of them."""
TARGETS = {"cnn": (0.3, 0.1), "text-lm": (2.3,)}
C = 0.1
"""The laziness of wk2: the paper's."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A contender: how it is made, the optimizer steps of its round, and the steps that are tried on each task."""

    make: Callable[[Task, Mapping[str, Any], Method], tuple[Any, Callable[[int], None]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    every: int = 10
    """Iterations between two looks at the loss, whole rounds of them."""
    trials: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=lambda: STEPS)


def plain(*rates: float) -> tuple[Mapping[str, Any], ...]:
    """Return steps of plain SGD."""
    return tuple({"lr": lr} for lr in rates)


MOMENTUM: Mapping[str, Any] = {"lr": 0.02, "momentum": 0.9}
STEPS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "cnn": (*plain(0.05, 0.1, 0.2), MOMENTUM),
    "text-lm": plain(0.001, 0.002, 0.004),
}
"""Of SGD; of AdamW on text."""
NESTEROV = {"momentum": 0.9, "nesterov": True}


# -- a rank --------------------------------------------------------------------------------------------------------


class Aside:
    """What the ranks tell each other beside the network: through files, so that no slow link is in the way."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank, self._numbers = folder, rank, itertools.count()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's array, in their order."""
        import numpy as np

        number = next(self._numbers)
        path = self.folder / f"{number}-{self.rank}.part"
        with path.open("wb") as file:
            np.save(file, np.asarray(value))
        path.rename(path.with_suffix(".npy"))
        with suppress(FileNotFoundError):  # everybody has read it who says something later
            (self.folder / f"{number - 2}-{self.rank}.npy").unlink()
        found = []
        for rank in range(RANKS):
            while not (there := self.folder / f"{number}-{rank}.npy").exists():
                time.sleep(0.001)
            found.append(np.load(there))
        return found


@dataclass
class Task:
    """What every method trains, from the same start, on the same minibatches."""

    name: str
    rank: int
    aside: Aside
    make: Callable[[], Any]
    criterion: Callable[[Any, Any], Any]
    inputs: Any
    labels: Any
    sample: tuple[Any, Any]
    batch: int

    def model(self) -> Any:
        """Return the network at its start."""
        return self.make()

    def optimizer(self, model: Any, step: Mapping[str, Any]) -> Any:
        """Return the task's optimizer: SGD, for text AdamW."""
        import torch

        return (torch.optim.AdamW if self.name == "text-lm" else torch.optim.SGD)(model.parameters(), **step)

    def loss_at(self, model: Any, k: int) -> Any:
        """Return the loss of this rank's minibatch of an iteration."""
        import torch

        made = torch.Generator().manual_seed(1000 * k + self.rank)
        chosen = torch.randint(0, len(self.inputs), (self.batch,), generator=made)
        return self.criterion(model(self.inputs[chosen]), self.labels[chosen])

    def loss(self, model: Any) -> float:
        """Return the loss on samples of all ranks: every rank measures its part of them."""
        import torch

        with torch.no_grad():
            return float(sum(self.aside.gather(float(self.criterion(model(self.sample[0]), self.sample[1]))))) / RANKS


def images(data_dir: str | None, rank: int, aside: Aside) -> Task:
    """Return a rank's quarter of MNIST sorted by label; the loss is that of 2,000 training samples of all classes."""
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy

    from lasg.data.loaders import load
    from lasg.problems import models

    found = load("mnist", data_dir=Path(data_dir) if data_dir else None)
    mine = np.array_split(np.argsort(found.labels, kind="stable"), RANKS)[rank]
    x, y = torch.tensor(found.features, dtype=torch.float32), torch.tensor(found.labels, dtype=torch.int64)
    x = x.reshape(-1, 1, 28, 28) / (255 if x.max() > 1 else 1)
    some = torch.from_numpy(np.random.default_rng(0).choice(len(y), 2000, replace=False)[rank::RANKS])
    make = lambda: models.model("cnn", (1, 28, 28), 10, 0)  # noqa: E731
    return Task("cnn", rank, aside, make, cross_entropy, x[mine], y[mine], (x[some], y[some]), 30)


def text(rank: int, aside: Aside) -> Task:
    """Return a rank's part of the King James Version; the loss is that of 64 windows of every part."""
    import torch

    from lasg.data.loaders import load
    from lasg.problems import models

    found = load("king-james")
    windows = torch.from_numpy(found.features[found.labels == rank].astype("int64"))
    x, y = windows[:, :-1], windows[:, 1:]
    make = lambda: models.model("transformer", tuple(x.shape[1:]), found.vocabulary, 0, text=True)  # noqa: E731
    some = slice(None, None, len(x) // 64)
    return Task("text-lm", rank, aside, make, models.sequence_cross_entropy, x, y, (x[some][:64], y[some][:64]), 16)


# -- the methods -----------------------------------------------------------------------------------------------------


def plain_loop(of: Task, model: Any, called: Any, optimizer: Any) -> Callable[[int], None]:
    """Return an ordinary training step; `called` is the model, or what wraps it."""

    def step(k: int) -> None:
        optimizer.zero_grad()
        of.loss_at(called, k).backward()
        optimizer.step()

    return step


def ddp(of: Task, step: Mapping[str, Any], method: Method) -> tuple[Any, Callable[[int], None]]:
    """DistributedDataParallel, with one of PyTorch's hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    model = of.model()
    hook = method.options.get("hook")
    # One bucket: with two, gloo's two threads both wait inside the PowerSGD hook, for ever.
    wrapped = DistributedDataParallel(model, bucket_cap_mb=100 if hook == "PowerSGD" else None)
    if hook == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=10, use_error_feedback=True
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model, plain_loop(of, model, wrapped, of.optimizer(model, step))


def post_local(of: Task, step: Mapping[str, Any], method: Method) -> tuple[Any, Callable[[int], None]]:
    """PyTorch's post-local SGD: all-reduce in the first 10 iterations, then averages of models every 4."""
    import torch
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model, warm, period, done = of.model(), 10, 4, 0
    wrapped = DistributedDataParallel(model)
    inner = of.optimizer(model, step)
    averaged = PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=period, warmup_steps=warm))

    def take(k: int) -> None:
        nonlocal done
        done = k + 1
        averaged.zero_grad()
        of.loss_at(wrapped if k < warm else model, k).backward()
        averaged.step()  # type: ignore[no-untyped-call]

    def shown() -> Any:
        """Return the average of the ranks' models, which is what a user would take."""
        found = copy.deepcopy(model)
        with torch.no_grad():
            own = torch.nn.utils.parameters_to_vector(found.parameters())
            mean = torch.from_numpy(sum(of.aside.gather(own.numpy()))) / RANKS
            torch.nn.utils.vector_to_parameters(mean, found.parameters())
        return found

    take.shown = shown  # type: ignore[attr-defined]
    take.uploads = lambda: RANKS * (min(done, warm) + -(-max(done - warm, 0) // period))  # type: ignore[attr-defined]
    return model, take


def lazy_optimizer(of: Task, step: Mapping[str, Any], method: Method) -> tuple[Any, Callable[[int], None]]:
    """`LazyOptimizer`: one gradient per round."""
    import torch

    import lasg

    model, options = of.model(), dict(method.options)
    made = of.optimizer(model, step) if options.get("rule") else torch.optim.SGD(model.parameters(), **step)
    lazy = lasg.LazyOptimizer(made, **options)

    def take(k: int) -> None:
        lazy.step(lambda: of.loss_at(model, k))

    take.uploads = lambda: lazy.ledger.uploads  # type: ignore[attr-defined]
    take.sent = lambda: int(lazy.sent.sum())  # type: ignore[attr-defined]
    return model, take


def lazy_loop(of: Task, step: Mapping[str, Any], method: Method) -> tuple[Any, Callable[[int], None]]:
    """`lasg.lazy`: the plain loop, averaged."""
    import torch

    import lasg

    step = dict(step)
    outer = {"lr": step.pop("outer"), **NESTEROV} if "outer" in step else None
    model = of.model()
    optimizer = of.optimizer(model, step)
    more: Mapping[str, Any] = {} if outer is None else {"outer": torch.optim.SGD, "outer_options": outer}
    loop = lasg.lazy(model, optimizer, **method.options, **more)
    take = plain_loop(of, model, model, optimizer)
    take.uploads = lambda: loop.ledger.uploads  # type: ignore[attr-defined]
    take.sent = lambda: int(loop.sent.sum())  # type: ignore[attr-defined]
    take.end = loop.leave  # type: ignore[attr-defined]
    return model, take


_DILOCO = {
    "cnn": ({"lr": 0.05, "outer": 0.7}, {"lr": 0.1, "outer": 0.7}, *({**MOMENTUM, "outer": o} for o in (0.3, 0.7))),
    "text-lm": tuple({"lr": lr, "outer": 0.7} for lr in (0.001, 0.002, 0.004)),
}
_DGC = {"cnn": plain(0.005, 0.01, 0.02, 0.05), "text-lm": plain(0.03, 0.1, 0.3)}
"""Its momentum is .9, so its steps are ten times as long."""
METHODS = {
    "ddp": Method(ddp),
    "ddp, fp16 hook": Method(ddp, {"hook": "fp16"}),
    "ddp, PowerSGD rank 4": Method(ddp, {"hook": "PowerSGD"}),
    "post-local SGD, H = 4": Method(post_local),
    "DiLoCo, H = 20": Method(lazy_loop, {"algorithm": "diloco", "every": 20}, 20, _DILOCO),
    "SparseLoCo, H = 20": Method(lazy_loop, {"algorithm": "sparseloco", "every": 20}, 20),
    "deep gradient compression": Method(lazy_optimizer, {"algorithm": "dgc"}, 10, _DGC),
    "wk2, 4 bits, coded": Method(lazy_optimizer, {"rule": "wk2", "codec": "qsgd4:512+ec", "c": C}),
    "lasg.lazy, every=1": Method(lazy_loop, {"every": 1}),
    "lasg.lazy, every=20": Method(lazy_loop, {"every": 20}, 20),
    "always, dense": Method(lazy_optimizer, {"rule": "always", "codec": "dense"}),
}
CONTENDERS = tuple(METHODS)[:-1]
"""Those of the race; the last one is lasg's own data-parallel SGD, for performance.md."""


def race(run: Mapping[str, Any], of: Task, device: str) -> Iterator[Row]:
    """Train to one loss after the other; give a row for each, with seconds, iterations and bytes."""
    import torch

    torch.manual_seed(0)
    method, targets = METHODS[run["method"]], list(run["targets"])
    model, step = method.make(of, run["step"], method)
    seconds, k, down, up = 0.0, 0, 0, 0
    while targets:
        of.aside.gather(0)
        before, began = carried(device), time.monotonic()
        for _ in range(method.every):
            step(k)
            k += 1
        seconds += time.monotonic() - began
        of.aside.gather(0)  # what others still send counts, too
        after = carried(device)
        down, up = down + after[0] - before[0], up + after[1] - before[1]
        loss = of.loss(getattr(step, "shown", lambda: model)())
        if of.rank == 0:
            print(f"\r{run['method']}: {k} it, {seconds:.0f} s, loss {loss:.3f} ", end="", file=sys.stderr, flush=True)
        told = of.aside.gather([seconds, up, down, getattr(step, "sent", lambda: math.nan)()])
        seconds = float(told[0][0])
        over = seconds > run["limit"] or k >= run["iterations"] or not loss < 1e3
        while targets and (loss <= targets[0] or over):
            target = targets.pop(0)
            # The loopback is one interface, which carries what all of them send.
            mean = [float(sum(column)) / RANKS / 1e6 for column in zip(*told, strict=True)]
            shared = RANKS if device == LOOPBACK else 1
            yield {
                "target": target,
                "reached": loss <= target,
                "loss": round(loss, 4),
                "iterations": k,
                "uploads": step.uploads() if hasattr(step, "uploads") else RANKS * k,
                "seconds": round(seconds, 2),
                "ms_an_iteration": round(1000 * seconds / k, 1),
                "megabytes_up": round(mean[1] / shared, 3),
                "megabytes_down": round(mean[2] / shared, 3),
                "megabytes_counted": "" if math.isnan(mean[3]) else round(mean[3], 3),
                "cap": run["limit"],
            }
    getattr(step, "end", lambda: None)()


def rank(options: argparse.Namespace) -> None:
    """Run all runs, one after another, as one of the ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = options.device
    me, aside = int(options.rank), Aside(Path(options.folder), int(options.rank))
    dist.init_process_group("gloo", f"tcp://{options.address}", rank=me, world_size=RANKS)
    of = text(me, aside) if options.task == "text-lm" else images(options.data_dir, me, aside)
    for number, run in enumerate(json.loads(options.runs)):
        for found in race(run, of, options.device):
            if me == 0:
                print(json.dumps({"run": number, **found}), flush=True)
    aside.gather(0)
    dist.destroy_process_group()


# -- the command ---------------------------------------------------------------------------------------------------


def launched(task: str, runs: list[Row], data_dir: str | None, network: Network | None) -> Iterator[Row]:
    """Start the ranks; give what rank 0 says of each run."""
    with TemporaryDirectory(prefix="slow-link-") as folder:
        own = [sys.executable, __file__, "rank", "--task", task, "--runs", json.dumps(runs), "--folder", folder]
        own += ["--data-dir", data_dir] if data_dir else []
        address, device = (network.address(0), DEVICE) if network else ("127.0.0.1", LOOPBACK)
        with socket.create_server(("127.0.0.1", 0)) as free:  # on the loopback others may have any fixed one
            address += f":{free.getsockname()[1]}"
        processes = []
        for number in range(RANKS):
            command = [*(network.command(number) if network else ()), *own, "--address", address]
            output = subprocess.PIPE if number == 0 else None
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            command += ["--device", device, "--rank", str(number)]
            processes.append(subprocess.Popen(command, stdout=output, text=True, env=environment))
        try:
            assert processes[0].stdout is not None
            for line in processes[0].stdout:
                yield json.loads(line)
        finally:
            for process in processes:
                process.kill()
                process.wait()


class Table:
    """The rows of a file, found by some of their columns."""

    def __init__(self, path: Path, keys: tuple[str, ...]) -> None:
        self.path, self.keys, self.rows = path, keys, []
        if path.exists():
            with path.open(newline="") as lines:
                self.rows = list(csv.DictReader(lines))

    rows: list[Row]

    def find(self, *key: Any) -> Row | None:
        """Return the row of a key."""
        wanted = list(map(str, key))
        return next((row for row in self.rows if [str(row[name]) for name in self.keys] == wanted), None)

    def add(self, row: Row) -> None:
        """Write one more row, or a better one; one that arrived is not replaced by one that did not."""
        old = self.find(*(row[name] for name in self.keys))
        if old is not None:
            if arrived(old) and not arrived(row):
                return
            self.rows.remove(old)
        self.rows.append(row)
        with self.path.with_suffix(".part").open("w", newline="") as lines:
            writer = csv.DictWriter(lines, list(row))
            writer.writeheader()
            writer.writerows(self.rows)
        self.path.with_suffix(".part").replace(self.path)
        print(row, flush=True)


def arrived(row: Row) -> bool:
    """Tell whether a run reached its loss."""
    return str(row["reached"]) == "True"


def words(step: Mapping[str, Any]) -> str:
    """Return a step as a cell of a table."""
    return json.dumps(dict(step))


def tune(task: str, methods: list[str], table: Table, data_dir: str | None, iterations: int) -> None:
    """Try every step of every method that has no rows yet."""
    runs: list[Row] = [
        {"method": method, "step": step, "targets": TARGETS[task], "limit": math.inf, "iterations": iterations}
        for method in methods
        for step in METHODS[method].trials[task]
        if any(table.find(task, method, words(step), target) is None for target in TARGETS[task])
    ]
    for found in launched(task, runs, data_dir, None) if runs else ():
        run = runs[found.pop("run")]
        kept = {name: found[name] for name in ("target", "reached", "loss", "iterations")}
        table.add({"task": task, "method": run["method"], "step": words(run["step"]), **kept})


def best(table: Table, task: str, method: str, target: float) -> Mapping[str, Any] | None:
    """Return the step that reached the loss in the fewest iterations, or else came nearest."""
    rows = [row for row in table.rows if (row["task"], row["method"]) == (task, method)]
    rows = [row for row in rows if float(row["target"]) == target]
    if not rows:
        return None
    first = min(rows, key=lambda r: (not arrived(r), int(r["iterations"]) if arrived(r) else 0, float(r["loss"])))
    found: Mapping[str, Any] = json.loads(first["step"])
    return found


def planned(options: argparse.Namespace, tuning: Table, table: Table) -> list[Row]:
    """Return the runs that are missing on a link; one run goes on to the next loss where the step is the same."""
    runs: list[Row] = []
    for method in options.methods:
        for target in options.targets or TARGETS[options.task]:
            old = table.find(options.task, options.link, method, target)
            done = old is not None and (arrived(old) or float(old["cap"]) >= options.limit)
            step = best(tuning, options.task, method, target)
            if step is None:
                print(f"{method} has no trials for {options.task}: run tune first", file=sys.stderr)
            elif options.again or not done:
                if runs and (runs[-1]["method"], runs[-1]["step"]) == (method, step):
                    runs[-1]["targets"].append(target)
                else:
                    runs.append({"method": method, "step": step, "targets": [target]})
    return [{**run, "limit": options.limit, "iterations": 10**6} for run in runs]


def compare(options: argparse.Namespace, tuning: Table, table: Table) -> None:
    """Run what is missing on one link."""
    runs, link = planned(options, tuning, table), LINKS[options.link]
    if not runs:
        return
    with hosts([link] * RANKS, MTU) if link else _nowhere() as network:
        for found in launched(options.task, runs, options.data_dir, network):
            run = runs[found.pop("run")]
            named = {"task": options.task, "link": options.link, "method": run["method"], "step": words(run["step"])}
            table.add({**named, **found})


def show(table: Table) -> str:
    """Return one table per task, link and loss."""
    lines = []
    for task, link in dict.fromkeys((row["task"], row["link"]) for row in table.rows):
        for target in TARGETS[task]:
            rows = {m: row for m in METHODS if (row := table.find(task, link, m, target)) is not None}
            lines += [f"\n{task}, {link}, to a loss of {target:g}\n"]
            lines.append("| method | iterations | seconds | MB up | MB down | DDP's seconds / these |")
            lines.append("| --- |" + " ---: |" * 5)
            base = rows.get("ddp")
            for method, row in sorted(rows.items(), key=lambda item: (not arrived(item[1]), float(item[1]["seconds"]))):
                late = f"not in {float(row['seconds']):.0f} s: {float(row['loss']):.3g}"
                ratio = "" if base is None else f"{float(base['seconds']) / float(row['seconds']):.1f}"
                at_least = ">= " if base is not None and not arrived(base) else ""
                cells = [method, row["iterations"], f"{float(row['seconds']):.1f}" if arrived(row) else late]
                cells += [f"{float(row[name]):.2f}" for name in ("megabytes_up", "megabytes_down")]
                lines.append("| " + " | ".join([*cells, at_least + ratio if arrived(row) else ""]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Tune, race, or show the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "race", "show", "rank"), metavar="tune|race|show")
    parser.add_argument("--task", choices=list(TARGETS), default="cnn")
    parser.add_argument(
        "--link", choices=list(LINKS), metavar="LINK", help=f"one of {', '.join(LINKS)}; all but the first"
    )
    parser.add_argument("--targets", type=float, nargs="+", help="only to these losses")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a run is given up")
    parser.add_argument("--iterations", type=int, default=400, help="of a trial, after which it is given up")
    parser.add_argument("--methods", nargs="+", default=list(CONTENDERS), choices=METHODS, metavar="METHOD")
    parser.add_argument("--again", action="store_true", help="run again what is there")
    parser.add_argument("--data-dir", help="where MNIST is")
    parser.add_argument("--csv", type=Path, default=ROOT / "results" / "slow-link.csv", help="where the rows are")
    parser.add_argument("--tuning", type=Path, default=ROOT / "results" / "slow-link-tuning.csv", help="the trials")
    for name in ("--rank", "--address", "--device", "--folder", "--runs"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "rank":
        rank(options)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the namespaces are removed
    tuning = Table(options.tuning, ("task", "method", "step", "target"))
    table = Table(options.csv, ("task", "link", "method", "target"))
    if options.what == "tune":
        tune(options.task, options.methods, tuning, options.data_dir, options.iterations)
    if options.what == "race":
        for link in [options.link] if options.link else [name for name, link in LINKS.items() if link]:
            if LINKS[link]:
                require_root()
            compare(argparse.Namespace(**{**vars(options), "link": link}), tuning, table)
    if options.what == "show":
        print(show(table))


@contextmanager
def _nowhere() -> Iterator[None]:
    yield None


if __name__ == "__main__":
    main()
