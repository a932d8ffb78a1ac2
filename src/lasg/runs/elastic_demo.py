"""A lighthouse and four ranks on this machine, of which some are killed and started again: `lasg elastic demo`."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lasg.runs.elastic_replay import Replayed, replay
from lasg.transports.elastic_group import require_torchft

NAMES = ("a", "b", "c", "d")
EVERY, STEP_SECONDS = 10, 0.04
"""Steps per round, and how long each takes at least, so that rounds can be followed."""
KILLS = {5: "c", 12: "d", 13: "a"}
REVIVALS = {9: "c", 17: "d", 18: "a"}
"""By the round in which it happens."""
RECORDS = "b"
"""The rank that writes the record: it is never killed."""


@dataclass
class Progress:
    """What is known of the demo's run."""

    k: int = 0
    members: tuple[str, ...] = ()
    spoke: tuple[str, ...] = ()
    losses: dict[str, float] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each round ended, as the recording rank saw it."""
    checksums: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of the models that members had after each round. What a killed rank said of a round that no other has ended is
    left out: the others end that round without it."""
    bytes_up: int = 0

    @property
    def agreed(self) -> bool:
        """Whether all members had the same model after every round, to the bit."""
        return all(len(set(sums.values())) <= 1 for sums in self.checksums.values())


def lighthouse(port: int, *, minimum: int = 1, heartbeat: float = 3.0, join: float = 3.0) -> Any:
    """Start torchft's lighthouse in this process; who is not heard of for `heartbeat` seconds is taken for dead."""
    require_torchft()
    from torchft.coordination import LighthouseServer

    times = {"heartbeat_timeout_ms": round(1000 * heartbeat), "join_timeout_ms": round(1000 * join)}
    return LighthouseServer(bind=f"[::]:{port}", min_replicas=minimum, quorum_tick_ms=50, **times)


def port_of(started: Any) -> int:
    """Return the port that a lighthouse listens on."""
    return int(started.address().rpartition(":")[2])


def rank(name: str, at: str, folder: str | None, rounds: int, said: Connection) -> None:
    """Train a small network on this rank's part of the digits."""
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy

    from lasg.data.loaders import load
    from lasg.loops.elastic_loop import elastic

    torch.set_num_threads(1)
    data = load("digits")
    mine = np.arange(NAMES.index(name), len(data.labels), len(NAMES))
    x, y = torch.tensor(data.features[mine], dtype=torch.float32), torch.tensor(data.labels[mine], dtype=torch.int64)
    x = x / x.max()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.Generator().manual_seed(NAMES.index(name))
    loop = elastic(model, optimizer, lighthouse=at, name=name, every=EVERY, timeout=2.0, record=folder)
    last = float("nan")
    loop.listeners.append(lambda c: said.send((name, c.k, c.members, c.spoke, c.checksum, last, loop.ledger.bits_up)))
    with loop:
        while loop.rounds < rounds:
            some = torch.randint(0, len(y), (32,), generator=batches)
            loss = cross_entropy(model(x[some]), y[some])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            last = float(loss.detach())
            time.sleep(STEP_SECONDS)
    said.close()


class Demo:
    """The processes of the demo."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds, self.progress = folder, rounds, Progress()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["lasg.loops.elastic_loop", "torchft.manager", "sklearn.datasets"])
        self._processes: dict[str, Any] = {}
        self._pipes: dict[Connection, str] = {}

    def run(self) -> Iterator[Progress]:
        """Start everything; give what is known after every round and event."""
        started = lighthouse(0, heartbeat=1.0, join=1.0)
        self._at = f"127.0.0.1:{port_of(started)}"
        try:
            for name in NAMES:
                self._start(name)
            while RECORDS in self._pipes.values():  # a rank that comes later would begin a run of its own
                for pipe in wait(list(self._pipes), timeout=60):
                    assert isinstance(pipe, Connection)
                    if pipe in self._pipes:
                        self._hear(pipe)
                    yield self.progress
        finally:
            for process in self._processes.values():
                process.kill()
            started.shutdown()

    def _start(self, name: str) -> None:
        folder = str(self.folder) if name == RECORDS else None
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=rank, args=(name, self._at, folder, self.rounds, theirs), daemon=True)
        process.start()
        theirs.close()
        self._processes[name], self._pipes[ours] = process, name
        self.progress.dead.discard(name)

    def _hear(self, pipe: Connection) -> None:
        """Take what a rank says."""
        progress = self.progress
        try:
            said = pipe.recv()
        except (EOFError, OSError):
            self._pipes.pop(pipe, None)
            return
        name, k, members, spoke, checksum, loss, bits = said
        progress.losses[name] = loss
        if k < self.rounds:  # from then on ranks leave, and who has left may have ended a round that others end again
            progress.checksums.setdefault(k, {})[name] = checksum
        if name != RECORDS:
            return
        progress.k, progress.members, progress.spoke, progress.bytes_up = k, members, spoke, bits // 8
        progress.times.append(time.monotonic())
        if k in KILLS:
            self._kill(KILLS[k], k)
            progress.events.append(f"round {k}: {KILLS[k]} is killed (SIGKILL)")
        if k in REVIVALS:
            self._start(REVIVALS[k])
            progress.events.append(f"round {k}: {REVIVALS[k]} is started again")

    def _kill(self, name: str, k: int) -> None:
        """Kill a rank, and forget what it said of rounds after this one."""
        self._processes[name].kill()
        self.progress.dead.add(name)
        self._pipes = {pipe: whose for pipe, whose in self._pipes.items() if whose != name}
        for later, sums in self.progress.checksums.items():
            if later > k:
                sums.pop(name, None)

    def check(self) -> Replayed:
        """Compute the model again from the record."""
        return replay(self.folder)
