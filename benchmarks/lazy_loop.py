"""What `lasg.lazy` costs: a step beside DistributedDataParallel's, rounds that send while they compute, bytes per link.

    python benchmarks/lazy_loop.py step       # on the bare loopback
    python benchmarks/lazy_loop.py overlap    # two hosts, 50 Mbit/s and 20 ms, in namespaces; as root
    python benchmarks/lazy_loop.py bytes      # three hosts; as root

All train the paper's CNN with 30 images per rank and step. The images are random: only their shapes matter here.
`--csv FILE` also writes the rows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from namespaces import DEVICE, Link, carried, enter_namespace, hosts, require_root

LINK = Link(50e6, 0.02)
BATCH, LR = 30, 0.05
Row = dict[str, Any]
_CONNECTION = re.compile(r"\S+\s+\d+\s+\d+\s+\S+\s+(?P<peer>[\d.]+):\d+\s")


# -- ranks ---------------------------------------------------------------------------------------------------------


def on_hosts(names: list[str] | None, ranks: int, work: Callable[..., list[Row]], *arguments: Any) -> list[list[Row]]:
    """Call `work(rank, *arguments)` on ranks of a process group, each in its namespace; return what each returned."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "lasg"])
    results: Any = context.Queue()
    with TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        processes = [
            context.Process(target=_rank, args=(names, rank, ranks, store, results, work, arguments), daemon=True)
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            found = {}
            for _ in processes:
                rank, rows, error = results.get(timeout=300)
                if error:
                    sys.exit(f"rank {rank}:\n{error}")
                found[rank] = rows
        finally:
            for process in processes:
                process.join(10)
                process.kill()
    return [found[rank] for rank in range(ranks)]


def _rank(
    names: list[str] | None, rank: int, ranks: int, store: str, results: Any, work: Callable[..., Any], rest: Any
) -> None:
    try:
        import torch
        import torch.distributed as dist

        if names is not None:
            enter_namespace(names[rank])
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if names is None else DEVICE
        dist.init_process_group("gloo", store, rank=rank, world_size=ranks)
        results.put((rank, work(rank, *rest), ""))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, [], traceback.format_exc()))


class Loop:
    """The paper's CNN, its optimizer, and a loop around them."""

    def __init__(self, images: Any, labels: Any, wrap: Callable[[Any], Any] | None = None, **lazy: Any) -> None:
        import torch
        from torch.nn.functional import cross_entropy

        import lasg
        from lasg.problems import models

        self.images, self.labels, self.criterion, self.k = images, labels, cross_entropy, 0
        self.model = models.model("cnn", (1, 28, 28), 10, 0)
        self.called = self.model if wrap is None else wrap(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self.lazy = lasg.lazy(self.model, self.optimizer, **lazy) if lazy else None

    def run(self, steps: int) -> None:
        """Take some steps."""
        for _ in range(steps):
            at = self.k * BATCH % len(self.labels)
            self.k += 1
            self.optimizer.zero_grad()
            loss = self.criterion(self.called(self.images[at : at + BATCH]), self.labels[at : at + BATCH])
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()


def images(rank: int) -> tuple[Any, Any]:
    """Return images of a rank's own, and their labels."""
    import torch

    drawn = torch.Generator().manual_seed(rank)
    return torch.rand((20 * BATCH, 1, 28, 28), generator=drawn), torch.randint(0, 10, (20 * BATCH,), generator=drawn)


def seconds(work: Callable[[], Any]) -> float:
    """Return how long something takes that begins on all ranks together: the slowest counts."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    began = time.monotonic()
    work()
    taken = torch.tensor([time.monotonic() - began])
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


# -- a step --------------------------------------------------------------------------------------------------------


def step_times(rank: int, turns: int, steps: int) -> list[Row]:
    """Measure DistributedDataParallel and `lasg.lazy` in turns; each turn gives a row."""
    from torch.nn.parallel import DistributedDataParallel

    data = images(rank)
    loops = {
        "ddp": Loop(*data, DistributedDataParallel),
        "every=20": Loop(*data, every=20),
        "every=1": Loop(*data, every=1),
        "every=1, diloco": Loop(*data, every=1, algorithm="diloco"),
    }
    for loop in loops.values():
        loop.run(20)
    rows: list[Row] = []
    for turn in range(turns):
        taken = {name: 1e3 * seconds(lambda loop=loop: loop.run(steps)) / steps for name, loop in loops.items()}  # type: ignore[misc]
        rows.append({"turn": turn, **{f"{name} (ms)": round(value, 2) for name, value in taken.items()}})
        rows[-1] |= {f"{name} / ddp": round(value / taken["ddp"], 3) for name, value in taken.items() if name != "ddp"}
    return rows


def step(given: argparse.Namespace) -> list[Row]:
    """Print the medians of the turns."""
    rows = on_hosts(None, given.ranks, step_times, given.turns, 20)[0]
    for name in rows[0]:
        if name != "turn":
            values = [row[name] for row in rows]
            print(f"{name}: median {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})")
    return [{"ranks": given.ranks, **row} for row in rows]


# -- sending while computing ------------------------------------------------------------------------------------------


def overlap_times(rank: int, algorithm: str, every: int, rounds: int) -> list[Row]:
    """Measure a round's computing alone, its sending alone, and whole rounds without and with delay."""
    data = images(rank)
    plain = Loop(*data)
    plain.run(5)
    compute = statistics.median(seconds(lambda: plain.run(every)) for _ in range(5))
    silent = Loop(*data, every=1, algorithm=algorithm)
    assert silent.lazy is not None
    silent.lazy.release()
    sends = []
    for _ in range(7):
        time.sleep(compute)  # TCP sends otherwise after a pause than in one go
        sends.append(seconds(silent.lazy.step))
    send = statistics.median(sends)
    taken = {}
    for delay in (0, 1):
        loop = Loop(*data, every=every, algorithm=algorithm, delay=delay)
        loop.run(2 * every)
        taken[delay] = seconds(lambda loop=loop: loop.run(rounds * every)) / rounds  # type: ignore[misc]
        assert loop.lazy is not None
        loop.lazy.close()
    longest = max(compute, send)
    row: Row = {"algorithm": algorithm, "every": every, "rounds": rounds}
    times = {"compute": compute, "send": send, "delay=0": taken[0], "delay=1": taken[1]}
    row |= {f"{name} (ms)": round(1e3 * value, 1) for name, value in times.items()}
    row["delay=0 / (compute + send)"] = round(taken[0] / (compute + send), 3)
    return [row | {"delay=1 / max(compute, send)": round(taken[1] / longest, 3)}]


def overlap(given: argparse.Namespace) -> list[Row]:
    """Measure rounds with more to compute, and with more to send."""
    require_root()
    rows = []
    with hosts([LINK] * 2, 9000) as network:
        for algorithm, every in given.rounds:
            (row,) = on_hosts(network.names, 2, overlap_times, algorithm, every, given.turns)[0]
            rows.append(row)
            print(row, flush=True)
    return rows


# -- bytes -----------------------------------------------------------------------------------------------------------


def sent_by_peer() -> dict[str, int]:
    """Return the bytes that this namespace's TCP connections have carried to each address, as the kernel counts."""
    listed = subprocess.run(["ss", "-tinHO"], check=True, capture_output=True, text=True).stdout
    found: dict[str, int] = {}
    for line in listed.splitlines():
        if (peer := _CONNECTION.match(line)) is None:
            continue
        sent, again = (re.search(rf"\b{name}:(\d+)", line) for name in ("bytes_sent", "bytes_retrans"))
        count = (int(sent[1]) if sent else 0) - (int(again[1]) if again else 0)
        found[peer["peer"]] = found.get(peer["peer"], 0) + count
    return found


def bytes_by_link(rank: int, addresses: list[str], algorithms: list[str], rounds: int) -> list[Row]:
    """Train some rounds; return what `lasg.lazy` counts to each other rank beside what the kernel does."""
    import torch.distributed as dist

    rows: list[Row] = []
    for algorithm in algorithms:
        loop = Loop(*images(rank), every=1, algorithm=algorithm)
        assert loop.lazy is not None
        loop.run(1)
        dist.barrier()
        time.sleep(0.5)  # what is under way arrives
        before, counted, device = sent_by_peer(), loop.lazy.sent.copy(), carried()[1]
        loop.run(rounds)
        time.sleep(0.5)
        after, counts, on_device = sent_by_peer(), loop.lazy.sent - counted, carried()[1] - device
        loop.lazy.leave()
        for other in (number for number in range(len(addresses)) if number != rank):
            row: Row = {"algorithm": algorithm, "rounds": rounds, "from": rank, "to": other}
            row |= {"counted": int(counts[other]), "kernel": after[addresses[other]] - before[addresses[other]]}
            rows.append(row | {"counted to all": int(counts.sum()), "on the device": on_device})
    return rows


def bytes_sent(given: argparse.Namespace) -> list[Row]:
    """Count what travels from each of three hosts to each other one."""
    require_root()
    with hosts([LINK] * 3, 9000) as network:
        addresses = [network.address(host) for host in range(3)]
        found = on_hosts(network.names, 3, bytes_by_link, addresses, given.algorithms, given.turns)
    rows = [row for own in found for row in own]
    for row in rows:
        print(row)
    return rows


PARTS: Mapping[str, Callable[[argparse.Namespace], list[Row]]] = {"step": step, "overlap": overlap, "bytes": bytes_sent}
ROUNDS = (("diloco", 20), ("diloco", 40), ("diloco", 60), ("diloco", 100), ("lasg-local", 20))
"""Algorithms, and steps per round."""


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--ranks", type=int, default=2, help="of the part `step`")
    parser.add_argument("--turns", type=int, default=10, help="turns, or rounds of each kind")
    names = ("lasg-local", "sparseloco", "diloco")
    parser.add_argument("--algorithms", nargs="+", default=names, help="of the part `bytes`")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    given.rounds = ROUNDS
    rows = PARTS[given.part](given)
    if given.csv:
        from lasg.report.paper_tables import to_csv

        given.csv.write_text(to_csv(rows))


if __name__ == "__main__":
    main()
