"""The server's folder: which one a run gets, its checkpoint, its trace and its model."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.torch import save
from torch import nn

from lasg.core.arrays import copies
from lasg.core.ledger import COUNTS
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.problems.buffers import named_tensors
from lasg.runs.files import write_atomically
from lasg.transports.federation import Federated

CHECKPOINT, PREVIOUS, STATUS = "server.safetensors", "server-previous.safetensors", "server.json"
MODEL, TRACE = "model.safetensors", "trace.csv"


def has_run(folder: Path) -> bool:
    """Tell whether a run has done a round here: then the folder is nobody else's."""
    return any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS, MODEL))


def choose(out: Path, *, resume: bool) -> Path:
    """Return the folder of a run: `out`, or `out-2`, `out-3`, ... where runs are already.

    A new run takes the first that has none; to resume is to go on in the last that has one.
    """
    later = (out.with_name(f"{out.name}-{number}") for number in itertools.count(2))
    last = out
    for folder in itertools.chain([out], later):
        if not has_run(folder):
            return last if resume else folder
        last = folder
    raise AssertionError("the numbers have ended")


def write_model(path: Path, model: nn.Module) -> None:
    """Write parameters and buffers by their names."""
    write_atomically(path, save(named_tensors(model)))


def checkpoint(run: Federated, folder: Path) -> None:
    """Write the server's whole state; the one before is kept."""
    path = folder / CHECKPOINT
    data = pack(run.state(live=True))
    if path.exists():
        path.replace(folder / PREVIOUS)
    write_atomically(path, data)
    status = {
        "round": run.server.k,
        "run": run.run,
        "settings": run.settings,
        "ledger": dict(zip(COUNTS, run.ledger.row(), strict=True)),
        "bytes up": run.bytes_up,
        "bytes down": run.bytes_down,
        "refused answers": run.refusals,
    }
    write_atomically(folder / STATUS, (json.dumps(status, indent=2) + "\n").encode())


def resume(run: Federated, folder: Path) -> bool:
    """Take the last whole checkpoint; False if there is none."""
    for name in (CHECKPOINT, PREVIOUS):
        path = folder / name
        if path.exists():
            state = unpack(path.read_bytes(), str(path))
            theirs = state["federation"]["settings"]
            # An older checkpoint says nothing of what was not a setting then.
            differs = [name for name, value in run.settings.items() if theirs.get(name, value) != value]
            if differs:
                raise LasgError(f"{path} is of a run with another {', '.join(differs)}")
            run.restore(copies(state))
            return True
    return False


class Trace:
    """A line a round, of what was sent and measured.

    A round's line is written before its checkpoint: there is a line for every round that a server can go on from.
    """

    FIELDS = (
        "round",
        "uploads",
        "uploads_so_far",
        "bits_up",
        "bytes_up",
        "bytes_down",
        "gradients",
        "seconds",
        "loss",
        "accuracy",
        "who",
    )

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, str]]:
        """Return the lines that are there; the last may be in the midst of being written, and is then left out."""
        text = self.path.read_text() if self.path.exists() else ""
        return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))

    def begin(self, k: int) -> None:
        """Keep the lines of the first k rounds: the run goes on from there, and a line after them may be half."""
        header = ",".join(self.FIELDS)
        found = self.path.read_text().splitlines() if k and self.path.exists() else []
        kept = found[1 : k + 1] if found[:1] == [header] else []
        write_atomically(self.path, "".join(f"{line}\n" for line in (header, *kept)).encode())

    def add(
        self, run: Federated, who: npt.NDArray[np.bool_], seconds: float, loss: float | None, accuracy: float | None
    ) -> None:
        """Write the line of a round; `who` has uploaded in it."""
        ledger, keys = run.ledger, [key for key, uploaded in zip(run.keys, who, strict=True) if uploaded]
        counts = (run.server.k, len(keys), ledger.uploads, ledger.bits_up)
        sent = (run.bytes_up, run.bytes_down, ledger.gradients)
        with self.path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(
                (*counts, *sent, round(seconds, 3), loss, accuracy, " ".join(keys))
            )
