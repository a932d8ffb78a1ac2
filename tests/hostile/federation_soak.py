"""A federation in one process to which things happen, and its model computed again from the answers that were taken."""

from __future__ import annotations

import contextlib
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.core.algorithms import Stages, choose_stages
from lasg.core.arrays import host
from lasg.core.robust import as_bound, bounded_sum
from lasg.core.training import Training
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.runs.files import write_atomically
from lasg.transports.federation import Federation
from lasg.transports.membership import Admission
from lasg.transports.nodes import Node, Parcel
from tests.transports.test_federation import KEYS, LAZINESS, member, training
from tests.transports.test_ranks import M, regression
from tests.transports.wire import Wire

FAULTS = ("kill", "stop", "cut link", "full disk", "damaged file", "damaged answer", "huge gradient", "clock jump")
ROUNDS, ROBUST, STEP = 40, "median-clip3", 0.1
COMPOSITIONS = ("wk2+qsgd8", "wk2+dense", "always+qsgd8+difference")
Rows = npt.NDArray[np.floating[Any]]


class Recomputed:
    """The model that the answers give which were taken: rows, their bounded sum, and plain SGD."""

    def __init__(self, stages: Stages, problem: Any) -> None:
        self.stages, self.like = stages, problem.start()
        self.theta: Rows = np.array(self.like, np.float64)
        self.rows: Rows = np.zeros((M, len(self.theta)))

    def add(self, took: dict[int, Parcel], gone: list[int], weights: Rows) -> None:
        """Take a round's uploads, by worker."""
        self.rows[gone] = 0
        for m, parcel in took.items():
            said = host(self.stages.codec.decode([parcel.arrays["contribution"].tobytes()], self.like))[0]
            adds = self.stages.belief == "difference" and "base" in parcel.head
            self.rows[m] = self.rows[m] + said if adds else said
        bound = as_bound(ROBUST)
        assert bound is not None
        self.theta = self.theta - STEP * bounded_sum(bound, self.rows, weights)


class Run:
    """A server, its nodes, and the files of its checkpoints."""

    def __init__(self, fault: str, chance: random.Random, folder: Path) -> None:
        folder.mkdir()
        self.fault, self.chance, self.folder = fault, chance, folder
        self.stages = choose_stages(chance.choice(COMPOSITIONS))
        self.stages = Stages(rule=self.stages.rule, codec=self.stages.codec, belief=self.stages.belief, robust=ROBUST)  # type: ignore[arg-type]
        self.problem = regression("float64")
        self.wire = Wire({100 + m: self.node(m) for m in range(M)})
        self.wire.forged = self.forge
        self.uploads: dict[tuple[int, int], Parcel] = {}
        self.liar = 100 + chance.randrange(M)
        self.numbers = 1000
        self.kept: dict[int, tuple[Rows, Rows]] = {}
        """What the recomputation was after each round, for servers that go on from an older checkpoint."""
        self.again = Recomputed(self.stages, self.problem)
        self.run, self.federation = self.server()

    def node(self, m: int) -> Node:
        return member(m, self.stages, self.problem)

    def server(self, state: dict[str, Any] | None = None) -> tuple[Training, Federation]:
        """Start a server, on a checkpoint's state or again."""
        admission = Admission(bind="key")
        clock: dict[str, Any] = {"clock": self.wire.clock, "sleep": self.wire.sleep}
        federation = Federation(self.wire, KEYS, away_after=LAZINESS.D, deadline=2.0, admission=admission, **clock)
        run = training(self.stages, self.problem, LAZINESS, None, federation)
        if state is not None:
            run.restore(state)
        federation.gather(10)
        return run, federation

    def forge(self, node: int, asked: Parcel, found: Parcel) -> Parcel | None:
        """Deliver an answer, or what becomes of it on its way."""
        if asked.head["kind"] != "work":
            return found
        if self.fault == "cut link" and self.chance.random() < 0.2:
            return None
        if found.head["kind"] == "upload":
            if node == self.liar and asked.head["round"] % 7 == 6:
                found = self.spoil(found)
            self.uploads[asked.head["round"], asked.head["worker"]] = found
        return found

    def spoil(self, found: Parcel) -> Parcel:
        """Return a huge upload, or one that is damaged."""
        message = found.arrays["contribution"]
        if self.fault == "huge gradient":
            row = np.full((1, len(self.again.theta)), 1e30)
            message = np.frombuffer(self.stages.codec.encode(row, lambda: np.full(row.shape, 0.5))[0], np.uint8)
        elif self.fault == "damaged answer":
            message = message[: self.chance.randrange(len(message))]
        return Parcel(found.head, {**found.arrays, "contribution": message})

    def disturb(self) -> None:
        """Do what the fault is to the nodes."""
        chance, there = self.chance, self.wire.there
        if self.fault == "kill":  # it comes back at once, as another node without a memory
            number = chance.choice(sorted(there))
            m = KEYS.index(there.pop(number).key)
            self.numbers += 1
            there[self.numbers] = self.node(m)
        elif self.fault == "stop":
            self.wire.deaf = {chance.choice(sorted(there))} if chance.random() < 0.7 else set()
        elif self.fault == "clock jump":
            self.wire.now += chance.uniform(1e3, 1e7)

    def restart(self) -> None:
        """Kill the server; it goes on from the newest checkpoint that is whole."""
        for path in (self.folder / "checkpoint", self.folder / "previous"):
            with contextlib.suppress(FileNotFoundError):
                try:
                    state = unpack(path.read_bytes(), path.name)
                except LasgError:
                    path.unlink()  # it must not take the place of the one before
                    continue
                self.run, self.federation = self.server(state)
                self.again.theta, self.again.rows = (part.copy() for part in self.kept[self.run.server.k])
                return
        raise AssertionError("no checkpoint was whole")

    def save(self) -> None:
        """Write a checkpoint, if the disk has room."""
        path = self.folder / "checkpoint"
        data = pack(self.run.state(live=True))
        full = self.fault == "full disk" and self.chance.random() < 0.5
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            if full:
                resource.setrlimit(resource.RLIMIT_FSIZE, (len(data) // 2, before[1]))
            fresh = self.folder / "new"
            write_atomically(fresh, data)
        except (OSError, LasgError):
            return
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        if path.exists():
            path.replace(self.folder / "previous")
        fresh.replace(path)

    def step(self) -> None:
        """Do a round, and compute it again."""
        k = self.run.server.k
        done = self.run.step()
        took = {int(m): self.uploads[k, int(m)] for m in np.flatnonzero(done.uploaded)}
        members = self.federation.members
        self.again.add(took, list(members.excluded), members.weights)
        self.kept[self.run.server.k] = (self.again.theta.copy(), self.again.rows.copy())
        self.save()


def episode(fault: str, chance: random.Random, folder: Path) -> str:
    """Do a run that a fault happens to; say how it ended."""
    found = Run(fault, chance, folder)
    start, restarts = found.problem.loss(found.again.theta), 0
    while found.run.server.k < ROUNDS:
        found.step()
        if found.run.server.k > 2 and chance.random() < 0.3:
            found.disturb()
        if found.fault in ("kill", "full disk", "damaged file") and restarts < 5 and chance.random() < 0.15:
            restarts += 1
            if found.fault == "damaged file" and (found.folder / "previous").exists():
                data = (found.folder / "checkpoint").read_bytes()
                (found.folder / "checkpoint").write_bytes(data[: chance.randrange(len(data))])
            found.restart()
    theta = host(found.run.theta)
    if not np.allclose(theta, found.again.theta, rtol=0, atol=1e-10):
        return "WRONG"
    return "recomputed" if found.problem.loss(theta) < start else "WRONG: no better than the start"
