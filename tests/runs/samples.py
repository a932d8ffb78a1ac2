"""Small specs that run in milliseconds, and stored runs with made-up numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lasg.core.ledger import COUNTS
from lasg.runs import store
from lasg.runs.spec import Spec, from_dict
from lasg.runs.status import Report, Status
from lasg.runs.store import Run
from lasg.runs.trace import Arrays

SMALL: dict[str, Any] = {
    "task": "small",
    "data": "breast-cancer",
    "workers": 6,
    "batch": 0.1,
    "eta": 0.1,
    "D": 12,
    "H": 4,
    "iterations": 60,
    "evaluate": 1,
}
P = 30
"""Features of breast-cancer, so entries of theta."""


def small(algorithm: str, **changes: Any) -> Spec:
    """Return the spec of a run that takes milliseconds."""
    return from_dict({**SMALL, "algorithm": algorithm, **changes})


def made_up(
    folder: Path,
    spec: Spec,
    rows: Sequence[tuple[int, int, float]],
    status: str = "done",
    masks: Sequence[Sequence[bool]] = (),
) -> Run:
    """Store a run that never ran: its evaluations are (uploads, bits up, loss)."""
    meta = {**store.begin(folder, spec, "0" * 64), "status": status}
    arrays: Arrays = {name: np.arange(len(rows)) for name in COUNTS}
    arrays["uploads"] = np.array([row[0] for row in rows], np.int64)
    arrays["bits_up"] = np.array([row[1] for row in rows], np.int64)
    arrays["loss"] = np.array([row[2] for row in rows], np.float64)
    arrays["accuracy"] = np.full(len(rows), np.nan)
    everybody = np.ones((max(0, len(rows) - 1), spec.workers), np.bool_)
    uploaded = np.array(masks, np.bool_).reshape(-1, spec.workers) if len(masks) else everybody
    arrays["uploaded"] = np.packbits(uploaded, axis=1)
    arrays["rounds"][-1] = len(uploaded)
    arrays["threshold"] = np.zeros(len(uploaded))
    arrays["watched_tau"] = np.ones((len(uploaded), len(spec.watched)), np.int64)
    arrays["watched_left"] = np.zeros((len(uploaded), len(spec.watched)))
    store.write_trace(folder, arrays)
    store.write_meta(folder, meta)
    return store.read(folder)


def same_bytes(left: Any, right: Any) -> bool:
    """Tell whether two nested states are equal bit for bit, in types too; NaN equals itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same_bytes(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_bytes, left, right))
    if hasattr(left, "detach"):
        left, right = left.detach().numpy(), right.detach().numpy()
    if isinstance(left, np.ndarray):
        return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())
    return repr(left) == repr(right)


class Stopped(Exception):  # noqa: N818
    """In place of Ctrl-C, which pytest would take for its own."""


def stop_after(rounds: int, sink: Report | None = None, error: type[BaseException] = Stopped) -> Report:
    """Return a report that ends a run once it went so many rounds."""

    def report(status: Status) -> None:
        if sink is not None:
            sink(status)
        if status.ledger.rounds >= rounds:
            raise error

    return report
