"""How far a run is, read from its folder while another process is at it: whatever engine that runs on.

A checkpoint holds the trace so far, and is written whole or not at all; so this looks at a run without touching it, and
is as old as the last checkpoint: ten seconds, or more for a large model. A federation writes one after every round.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from lasg.errors import LasgError
from lasg.runs import store
from lasg.runs.files import is_locked
from lasg.runs.store import Run
from lasg.runs.trace import EVALUATED, ROUNDS, Arrays

AWAY = "/transport/unheard"
"""Where a federation's checkpoint says who has not answered."""
PART_OF_RANK_0 = "checkpoint-*-rank-0-of-*.safetensors"


@dataclass(frozen=True)
class Progress:
    """A run as it is now; its `run.trace` holds what is known so far."""

    run: Run
    written: float
    """When that was written, in seconds since 1970; 0 before there was anything."""
    is_live: bool
    """Whether a process is at it now."""
    unanswered: tuple[int, ...] = ()
    """For how many rounds in a row each member of a federation has not answered; empty of other runs."""

    @property
    def has_begun(self) -> bool:
        """Whether there is an evaluation to show."""
        return bool(self.written) and len(self.run.trace["loss"]) > 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.run.status != "running"

    @property
    def uploads_saved(self) -> float:
        """The share of uploads that were not made, of those by every worker in every round."""
        rounds, uploads = (int(self.run.trace[name][-1]) for name in ("rounds", "uploads"))
        return 1 - uploads / (rounds * self.run.spec.workers) if rounds else 0.0

    @property
    def bits_saved(self) -> float:
        """The share of upload bits that were not sent, of those of dense uploads by every worker in every round."""
        now = {name: int(self.run.trace[name][-1]) for name in ("rounds", "bits_up", "bits_down", "downloads")}
        if not now["rounds"] or not now["downloads"]:
            return 0.0
        dense = now["bits_down"] / now["downloads"]  # the model, which a download is
        return 1 - now["bits_up"] / (dense * now["rounds"] * self.run.spec.workers)

    def names(self) -> list[str]:
        """Return what the workers are called: a federation's by their keys."""
        return [str(key) for key in self.run.meta.get("keys") or range(self.run.spec.workers)]

    def speaks(self, rounds: int) -> npt.NDArray[np.bool_]:
        """Return who uploaded in the last rounds: `(rounds, workers)`."""
        packed = self.run.trace["uploaded"][-rounds:]
        return np.unpackbits(packed, axis=1, count=self.run.spec.workers).astype(np.bool_)


def read(folder: Path | str) -> Progress:
    """Read how far a run is."""
    run = store.read(folder)
    live = is_locked(run.folder)
    if run.status != "running":
        return Progress(run, (run.folder / store.TRACE).stat().st_mtime if run.trace else 0.0, live)
    path = _newest(run.folder)
    if path is None:
        return Progress(run, 0.0, live)
    vars(run)["trace"], unanswered = _trace(path)  # what the property would read, were there a file yet
    return Progress(run, path.stat().st_mtime, live, unanswered)


def _newest(folder: Path) -> Path | None:
    found = [folder / store.CHECKPOINT] if (folder / store.CHECKPOINT).is_file() else [*folder.glob(PART_OF_RANK_0)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _trace(path: Path) -> tuple[Arrays, tuple[int, ...]]:
    """Read the trace in a checkpoint, and who is away, and nothing else of it: a model may be large."""
    try:
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            there = {name.partition("trace/")[2]: name for name in names if "/trace/" in name}
            away = [file.get_tensor(name).tolist() for name in names if name.endswith(AWAY)]
            return {name: file.get_tensor(there[name]) for name in (*EVALUATED, *ROUNDS)}, tuple(*away)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise LasgError(f"cannot read {path}: {error}") from None
