"""Training over slow links: lasg beside what PyTorch has. Four hosts on one machine, in network namespaces.

    python benchmarks/slow_link.py --data-dir DIR                      # 50 Mbit/s and 20 ms round trip, as root
    python benchmarks/slow_link.py --data-dir DIR --rate 0             # the loopback as it is, no namespaces

The network between them is in namespaces.py. All methods train the paper's CNN on MNIST from one start, on the same
minibatches, rank r on its own classes, until the loss on 2,000 training samples is that of --target. The clock and the
counters of the interfaces stand still while the loss is measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from namespaces import DEVICE, Link, Network, carried, hosts, require_root

RANKS = 4
LOOPBACK = "lo"
MTU = 9000
LR, BATCH, EVERY, SAMPLE = 0.05, 30, 10, 2000
METHODS = (
    "ddp",
    "ddp, fp16 hook",
    "ddp, PowerSGD rank 1",
    "ddp, PowerSGD rank 4",
    "post-local SGD, H = 4",
    "lasg sgd",
    "lasg wk2",
    "lasg pse",
    "lasg wk2, 8 bits",
    "lasg wk2, 4 bits",
)


# -- a rank --------------------------------------------------------------------------------------------------------


@dataclass
class Task:
    """What every method trains, from the same start, on the same minibatches."""

    inputs: Any
    labels: Any
    sample: Any
    rank: int
    target: float
    limit: float
    c: float

    def model(self) -> Any:
        """Return the paper's CNN at its start."""
        from lasg.problems import models

        return models.model("cnn", (1, 28, 28), 10, 0)

    def minibatch(self, k: int) -> tuple[Any, Any]:
        """Return this rank's minibatch of an iteration."""
        import torch

        made = torch.Generator().manual_seed(1000 * k + self.rank)
        chosen = torch.randint(0, len(self.inputs), (BATCH,), generator=made)
        return self.inputs[chosen], self.labels[chosen]

    def loss(self, model: Any) -> float:
        """Return the loss on samples of all classes: every rank measures its part of them."""
        import torch
        import torch.distributed as dist
        from torch.nn.functional import cross_entropy

        with torch.no_grad():
            mine = cross_entropy(model(self.sample[0]), self.sample[1], reduction="sum").double()
        dist.all_reduce(mine)
        return float(mine) / SAMPLE


def task(data_dir: str | None, rank: int, target: float, limit: float, c: float) -> Task:
    """Return the task of a rank: a quarter of MNIST sorted by label, so that ranks differ."""
    import numpy as np
    import torch

    from lasg.data.loaders import load

    found = load("mnist", data_dir=Path(data_dir) if data_dir else None)
    order = np.argsort(found.labels, kind="stable")
    mine = np.array_split(order, RANKS)[rank]
    x, y = torch.tensor(found.features, dtype=torch.float32), torch.tensor(found.labels, dtype=torch.int64)
    if x.max() > 1:
        x = x / 255
    x = x.reshape(-1, 1, 28, 28)
    some = torch.from_numpy(np.random.default_rng(0).choice(len(y), SAMPLE, replace=False)[rank::RANKS])
    return Task(x[mine], y[mine], (x[some], y[some]), rank, target, limit, c)


def stepper(method: str, of: Task) -> tuple[Any, Callable[[int], None]]:
    """Return a model, and the function that takes a method's step on it."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    import lasg

    model = of.model()
    plain = torch.optim.SGD(model.parameters(), lr=LR)
    if method.startswith("lasg"):
        rule, _, bits = method.removeprefix("lasg ").partition(", ")
        codec = f"qsgd{bits.split()[0]}:512" if bits else "dense"
        opt = lasg.LazyOptimizer(plain, "always" if rule == "sgd" else rule, codec, c=of.c)

        def lazy(k: int) -> None:
            x, y = of.minibatch(k)
            opt.step(lambda: cross_entropy(model(x), y))

        lazy.uploads = lambda: opt.ledger.uploads  # type: ignore[attr-defined]
        return model, lazy
    if method.startswith("post-local"):
        return model, post_local(model, plain, of)
    # One bucket: with two, gloo's two threads both wait inside the PowerSGD hook, for ever.
    ddp = DistributedDataParallel(model, bucket_cap_mb=100 if "PowerSGD" in method else None)
    if "fp16" in method:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if "PowerSGD" in method:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=int(method[-1]), start_powerSGD_iter=10, use_error_feedback=True
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def step(k: int) -> None:
        x, y = of.minibatch(k)
        plain.zero_grad()
        cross_entropy(ddp(x), y).backward()  # type: ignore[no-untyped-call]
        plain.step()

    return model, step


def post_local(model: Any, plain: Any, of: Task) -> Callable[[int], None]:
    """Return the step of post-local SGD: all-reduce in the first 10 iterations, then averages of models every 4."""
    import torch.distributed as dist
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    warm, period, done = 10, 4, 0
    ddp = DistributedDataParallel(model)
    averaged = PostLocalSGDOptimizer(plain, PeriodicModelAverager(period=period, warmup_steps=warm))

    def step(k: int) -> None:
        nonlocal done
        done = k + 1
        x, y = of.minibatch(k)
        averaged.zero_grad()
        cross_entropy((ddp if k < warm else model)(x), y).backward()  # type: ignore[no-untyped-call]
        averaged.step()  # type: ignore[no-untyped-call]

    def shown() -> Any:
        """Return the average of the ranks' models, which is what a user would take."""
        found = copy.deepcopy(model)
        for value in found.parameters():
            dist.all_reduce(value.data)
            value.data /= RANKS
        return found

    step.shown = shown  # type: ignore[attr-defined]
    step.uploads = lambda: RANKS * (min(done, warm) + -(-max(done - warm, 0) // period))  # type: ignore[attr-defined]
    return step


def race(method: str, of: Task, device: str) -> dict[str, Any]:
    """Train to the target; return seconds, iterations, and bytes."""
    import torch
    import torch.distributed as dist

    model, step = stepper(method, of)
    seconds, k, down, up = 0.0, 0, 0, 0
    while True:
        dist.barrier()
        before, began = carried(device), time.monotonic()
        for _ in range(EVERY):
            step(k)
            k += 1
        seconds += time.monotonic() - began
        after = carried(device)
        down, up = down + after[0] - before[0], up + after[1] - before[1]
        loss = of.loss(getattr(step, "shown", lambda: model)())
        if of.rank == 0:
            print(f"\r{method}: {k} iterations, {seconds:.0f} s, loss {loss:.3f} ", end="", file=sys.stderr, flush=True)
        clock = torch.tensor([seconds], dtype=torch.float64)
        dist.broadcast(clock, 0)
        seconds = float(clock)
        if loss <= of.target or seconds > of.limit or math.isnan(loss):
            break
    counts = [torch.zeros(2, dtype=torch.float64) for _ in range(RANKS)]
    dist.all_gather(counts, torch.tensor([up, down], dtype=torch.float64))
    # The loopback is one interface, which carries what all of them send.
    mean = torch.stack(counts).mean(0) / 1e6 / (RANKS if device == LOOPBACK else 1)
    uploads = getattr(step, "uploads", lambda: RANKS * k)()
    return {
        "method": method,
        "reached": loss <= of.target,
        "loss": round(loss, 4),
        "iterations": k,
        "uploads": uploads,
        "seconds": round(seconds, 2),
        "ms_an_iteration": round(1000 * seconds / k, 1),
        "megabytes_up": round(float(mean[0]), 2),
        "megabytes_down": round(float(mean[1]), 2),
    }


def rank(options: argparse.Namespace) -> None:
    """Run all methods, one after another, as one of the ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = options.device
    me = int(options.rank)
    dist.init_process_group("gloo", f"tcp://{options.address}:29500", rank=me, world_size=RANKS)
    of = task(options.data_dir, me, options.target, options.limit, options.c)
    for method in options.methods:
        found = race(method, of, options.device)
        if me == 0:
            print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


# -- the command ---------------------------------------------------------------------------------------------------


def launched(options: argparse.Namespace, network: Network | None) -> Iterator[dict[str, Any]]:
    """Start the ranks; give what rank 0 says of each method."""
    own = [sys.executable, __file__, "--target", str(options.target), "--limit", str(options.limit)]
    own += ["--c", str(options.c), "--methods", *options.methods]
    own += ["--data-dir", options.data_dir] if options.data_dir else []
    where = (
        ("--address", network.address(0), "--device", DEVICE)
        if network
        else ("--address", "127.0.0.1", "--device", LOOPBACK)
    )
    processes = []
    for number in range(RANKS):
        before = network.command(number) if network else ()
        output = subprocess.PIPE if number == 0 else None
        command = [*before, *own, *where, "--rank", str(number)]
        processes.append(
            subprocess.Popen(command, stdout=output, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        )
    try:
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            yield json.loads(line)
    finally:
        for process in processes:
            process.kill()


def main() -> None:
    """Compare the methods on one network, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50.0, help="Mbit/s of every host, each way; 0: not shaped")
    parser.add_argument("--delay", type=float, default=20.0, help="round trip in ms")
    parser.add_argument("--loss", type=float, default=0.0, help="per cent of the packets that are lost")
    parser.add_argument("--mtu", type=int, default=MTU, help="the longest packet, in bytes")
    parser.add_argument("--target", type=float, default=0.3, help="the loss to reach")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a method is given up")
    parser.add_argument("--c", type=float, default=0.1, help="the laziness of the rules")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD")
    parser.add_argument("--data-dir", help="where MNIST is")
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    for name in ("--rank", "--address", "--device"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank(options)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the namespaces are removed
    if options.rate:
        require_root()
    rows: list[dict[str, Any]] = []
    links = [Link(options.rate * 1e6, options.delay / 1e3, options.loss / 100)] * RANKS
    with hosts(links, options.mtu) if options.rate else _nowhere() as network:
        for row in launched(options, network):
            rows.append(row)
            first = rows[0]  # None unless DistributedDataParallel came first, and both reached the loss
            compares = first["method"] == "ddp" and first["reached"] and row["reached"]
            row["faster_than_ddp"] = round(first["seconds"] / row["seconds"], 2) if compares else None
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if options.csv and rows:
        from lasg.report.paper_tables import to_csv

        options.csv.write_text(to_csv(rows))


@contextmanager
def _nowhere() -> Iterator[None]:
    yield None


if __name__ == "__main__":
    main()
