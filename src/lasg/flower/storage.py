"""A federation's run on disk: the store of every run, written by the server after every round.

Beside it lies trace.csv, a line per round with the bytes that travelled.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import nn

from lasg.core.arrays import copies
from lasg.core.training import Round, Training
from lasg.errors import LasgError
from lasg.flower.tracking import Tracked
from lasg.packing import unpack
from lasg.problems.buffers import named_tensors
from lasg.runs import runner, store
from lasg.runs.files import wrap_write_errors, write_atomically
from lasg.runs.runner import Job
from lasg.runs.spec import Spec
from lasg.runs.trace import Trace
from lasg.transports.federation import Federation

ROUNDS = "trace.csv"
OLD = ("server.safetensors", "server-previous.safetensors")
"""The checkpoints of lasg 0.1."""


def has_run(folder: Path) -> bool:
    """Tell whether a run has done a round here: then the folder is nobody else's."""
    return any((folder / name).exists() for name in (store.CHECKPOINT, store.PREVIOUS, store.MODEL, *OLD))


def choose(out: Path, *, resume: bool) -> Path:
    """Return the folder of a run: `out`, or `out-2`, `out-3`, ... where runs are already.

    A new run takes the first that has none; to resume is to go on in the last that has one.
    """

    def folder(number: int) -> Path:
        return out if number == 1 else out.with_name(f"{out.name}-{number}")

    free = next(number for number in itertools.count(1) if not has_run(folder(number)))
    return folder(max(1, free - 1) if resume else free)


class Recorder:
    """Writes the store of a federation's run: a checkpoint after every round, the one before kept, and the end."""

    def __init__(
        self, folder: Path, spec: Spec, run: Training, federation: Federation, tracked: Tracked | None = None
    ) -> None:
        self.folder, self.run, self.federation = folder, run, federation
        self.tracked = tracked or Tracked("", "", {}, print)
        self.job = Job(spec, run, Trace(spec.workers, spec.watched))
        self.rounds = RoundLog(folder / ROUNDS)
        self.meta: dict[str, Any] = {}
        """What the store says of the run, once that has something to show."""
        self.remarks: list[str] = []
        """What a user must know of the run's files: which were damaged, and what was done."""

    def resume(self) -> bool:
        """Take the last whole checkpoint; False if there is none."""
        damaged: LasgError | None = None
        for path in (self.folder / name for name in (store.CHECKPOINT, store.PREVIOUS, *OLD)):
            if not path.exists():
                continue
            old = path.name in OLD
            try:
                state = unpack(path.read_bytes(), str(path)) if old else store.read_checkpoint(self.folder, path.name)
            except LasgError as error:
                damaged = damaged or error
                continue
            assert state is not None
            if damaged is not None:
                why = str(damaged).partition(". Delete it")[0]
                self.remarks.append(f"{why}: going on from {path.name}, the one before")
            self._check(path, state["federation"] if old else state["simulation"]["transport"])
            if old:
                self.run.restore(copies(state))
                self._take_lines()
            else:
                runner.restore(self.job, state, path)
                if path.name == store.PREVIOUS:
                    store.promote_previous(self.folder)
                self.remarks += self.rounds.check(self.run.server.k, state.get("lines", ""))
            return True
        if damaged is not None:
            raise damaged
        return False

    def begin(self) -> None:
        """Begin, or go on, with the next round; trackers get the rounds before it from what is stored of them."""
        self.rounds.begin(self.run.server.k)
        for line in self.rounds.lines():
            self.tracked.log(line, self.job.trace)

    def _check(self, path: Path, theirs: dict[str, Any]) -> None:
        """Refuse a checkpoint of other settings; an older one says nothing of what was not a setting then."""
        settings = self.federation.members.settings
        differs = [name for name, value in settings.items() if theirs["settings"].get(name, value) != value]
        if differs:
            raise LasgError(f"{path} is of a run with another {', '.join(differs)}")

    def _take_lines(self) -> None:
        """Take from trace.csv who uploaded before: a checkpoint of lasg 0.1 has no other trace of its rounds."""
        lines, keys = self.rounds.lines(), self.federation.keys
        tau = np.ones(len(keys), np.int64)
        for k in range(self.run.server.k):
            who = (lines[k].get("who") or "").split() if k < len(lines) else []
            uploaded = np.array([key in who for key in keys])
            self.job.trace.add_round(Round(k, uploaded, math.nan, None, tau))
            tau = np.where(uploaded, 1, tau + 1)

    def add(self, done: Round, seconds: float, loss: float | None, accuracy: float | None) -> None:
        """Record a round, and what was measured after it."""
        self.job.seconds += seconds
        self.job.trace.add_round(done)
        if loss is not None:
            self.job.trace.add_evaluation(self.run.ledger, loss, accuracy)
        ledger, members = self.run.ledger, self.federation.members
        who = [key for key, uploaded in zip(self.federation.keys, done.uploaded, strict=True) if uploaded]
        counts = (ledger.uploads, ledger.bits_up, members.bytes_up, members.bytes_down, ledger.gradients)
        said = (self.run.server.k, len(who), *counts, round(seconds, 3), loss, accuracy, " ".join(who))
        self.rounds.add(*said)
        self.tracked.log(dict(zip(self.rounds.COLUMNS, said, strict=True)), self.job.trace)
        if ledger.uploads:  # before that there is nothing to go on from, and the folder stays free
            self._begin()
            store.write_checkpoint(self.folder, {**self.job.state(), "lines": self.rounds.digest})

    def _begin(self) -> None:
        """Write what a run begins with, once it has something to show."""
        if self.meta:
            return
        if (self.folder / store.META).exists():
            self.meta = {**store.read(self.folder).meta, "status": "running"}
            store.write_spec(self.folder, self.job.spec, self.meta)
            store.write_meta(self.folder, self.meta)
        else:
            engine = {"engine": "flower", "keys": self.federation.keys, "run": self.federation.run}
            self.meta = store.begin(self.folder, self.job.spec, "", engine)

    def finish(self, model: nn.Module) -> None:
        """Store a run that came to its end."""
        self._begin()
        content = save(named_tensors(model))
        write_atomically(self.folder / store.MODEL, content)
        digest = hashlib.sha256(content).hexdigest()
        if not self.job.trace.evaluations:  # nobody could measure anything
            self.job.trace.add_evaluation(self.run.ledger, math.nan, None)
        members = self.federation.members
        traffic = {"bytes_up": members.bytes_up, "bytes_down": members.bytes_down, "refused_answers": members.refusals}
        state = {**self.job.record(), "ended": "done", "message": "", "given_up": self.run.given_up, "model": digest}
        # A federation may go on with more rounds: its checkpoints stay.
        runner.finalize(self.folder, self.job.spec, {**self.meta, **traffic}, state, keep_previous=True)


class RoundLog:
    """A line per round, of what was sent and measured, to be read while a run is under way.

    A round's line is written before its checkpoint: there is a line for every round that a server can go on from.
    """

    HEADER = "round,uploads,uploads_so_far,bits_up,bytes_up,bytes_down,gradients,seconds,loss,accuracy,who"
    COLUMNS = HEADER.split(",")

    def __init__(self, path: Path) -> None:
        self.path, self.digest = path, ""
        """The sha256 of the lines, one after another: checkpoints have it."""

    def lines(self) -> list[dict[str, str]]:
        """Return the lines that are there; the last may be in the midst of being written, and is then left out."""
        text = self.path.read_bytes().decode(errors="replace") if self.path.exists() else ""
        return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))

    def _kept(self, k: int) -> list[str]:
        """Return the lines of the first k rounds."""
        found = self.path.read_bytes().decode(errors="replace").splitlines() if k and self.path.exists() else []
        return found[1 : k + 1] if found[:1] == [self.HEADER] else []

    def check(self, k: int, digest: str) -> list[str]:
        """Return a remark if the lines of the first k rounds are not those that were written."""
        if not digest or digest == functools.reduce(_digest, self._kept(k), ""):
            return []
        return [f"{self.path} is damaged: its first {k} lines are not those that were written, and stay as they are"]

    def begin(self, k: int) -> None:
        """Keep the lines of the first k rounds: the run goes on from there, and a line after them may be half."""
        kept = self._kept(k)
        self.digest = functools.reduce(_digest, kept, "")
        write_atomically(self.path, "".join(f"{line}\n" for line in (self.HEADER, *kept)).encode())

    def add(self, *values: float | str | None) -> None:
        """Write the line of a round, and wait until it is on the disk: its checkpoint comes after it."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        with wrap_write_errors(self.path), self.path.open("a", newline="") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        self.digest = _digest(self.digest, text.getvalue().rstrip("\n"))


def _digest(before: str, line: str) -> str:
    """Return the sha256 of lines, of the one before and the next line."""
    return hashlib.sha256(f"{before} {line}".encode()).hexdigest()
