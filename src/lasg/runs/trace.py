"""What a run leaves behind: the loss and the ledger at every evaluation, and who uploaded in every round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.core.ledger import COUNTS, Ledger
from lasg.core.training import Round
from lasg.runs.spec import Spec

EVALUATED = (*COUNTS, "loss", "accuracy")
"""The columns of an evaluation."""
ROUNDS = ("uploaded", "threshold", "watched_tau", "watched_left")
"""The arrays that have one row a round."""

Arrays = dict[str, npt.NDArray[Any]]


class Trace:
    """Grows by one row an evaluation and one row a round; is stored as named arrays."""

    def __init__(self, workers: int, watch: tuple[int, ...]) -> None:
        self.workers, self.watch = workers, np.array(watch, np.int64)
        self.evaluations: list[tuple[float, ...]] = []
        self._masks: list[npt.NDArray[np.bool_]] = []
        self._watched: list[tuple[float, npt.NDArray[Any], npt.NDArray[Any] | None]] = []
        self._stored: Arrays = {}
        self.broken: list[tuple[int, int]] = []
        """(round, worker) of every gradient that was NaN or infinite."""

    def add_evaluation(self, ledger: Ledger, loss: float, accuracy: float | None) -> None:
        """Add an evaluation."""
        self.evaluations.append((*ledger.row(), loss, np.nan if accuracy is None else accuracy))

    def add_round(self, finished: Round) -> None:
        """Add a round."""
        self._masks.append(finished.uploaded)
        left = None if finished.left is None else finished.left[self.watch]
        self._watched.append((finished.threshold, finished.tau[self.watch], left))
        if finished.broken is not None:
            self.broken += [(finished.k, m) for m in np.flatnonzero(finished.broken).tolist()]

    def arrays(self) -> Arrays:
        """Return the trace as named arrays: see docs/store.md."""
        self._compact()
        table = np.array(self.evaluations, np.float64).reshape(-1, len(EVALUATED))
        columns: Arrays = {name: table[:, i].astype(np.int64) for i, name in enumerate(COUNTS)}
        columns |= {"loss": table[:, -2], "accuracy": table[:, -1]}
        if self.broken:
            columns["broken"] = np.array(self.broken, np.int64)
        return columns | self._stored

    def _compact(self) -> None:
        """Move the rounds since the last call into compact arrays."""
        n, w = len(self._masks), len(self.watch)
        silent = np.full(w, np.nan)
        new: Arrays = {
            "uploaded": np.packbits(np.array(self._masks, np.bool_).reshape(n, self.workers), axis=1),
            "threshold": np.array([row[0] for row in self._watched], np.float64),
            "watched_tau": np.array([row[1] for row in self._watched], np.int64).reshape(n, w),
            "watched_left": np.array(
                [silent if row[2] is None else row[2] for row in self._watched], np.float64
            ).reshape(n, w),
        }
        self._stored = {
            name: np.concatenate([self._stored[name], rows]) if self._stored else rows for name, rows in new.items()
        }
        self._masks, self._watched = [], []

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from stored arrays."""
        columns = [arrays[name].tolist() for name in EVALUATED]
        self.evaluations = list(zip(*columns, strict=True))
        self._stored = {name: arrays[name] for name in ROUNDS}
        self.broken = [(k, m) for k, m in arrays["broken"].tolist()] if "broken" in arrays else []
        self._masks, self._watched = [], []


def unpack_uploads(packed: npt.NDArray[np.uint8], workers: int) -> npt.NDArray[np.bool_]:
    """Return who uploaded as `(rounds, workers)`."""
    return np.unpackbits(packed, axis=1, count=workers).astype(np.bool_)


def check(arrays: Mapping[str, npt.NDArray[Any]], spec: Spec, *, whole: bool, measured: bool = True) -> None:
    """Refuse, with a ValueError, arrays that are not the trace of a run of `spec`; `whole`: that went to its end."""
    missing = [name for name in (*EVALUATED, *ROUNDS) if name not in arrays]
    if missing:
        raise ValueError(f"it has no array {missing[0]}")
    kinds = dict.fromkeys(COUNTS, "i") | dict.fromkeys(("loss", "accuracy", "threshold", "watched_left"), "f")
    kinds |= {"uploaded": "u", "watched_tau": "i"}
    wrong = [name for name, kind in kinds.items() if arrays[name].dtype.kind != kind]
    if wrong:
        raise ValueError(f"its array {wrong[0]} holds {arrays[wrong[0]].dtype}")
    if len({arrays[name].shape for name in EVALUATED}) != 1 or arrays["loss"].ndim != 1 or not len(arrays["loss"]):
        raise ValueError("its evaluations are cut short")
    rounds, watched = len(arrays["threshold"]), len(spec.watched)
    shapes = {"uploaded": (rounds, -(-spec.workers // 8)), "threshold": (rounds,)}
    shapes |= dict.fromkeys(("watched_tau", "watched_left"), (rounds, watched))
    at = arrays["rounds"]
    if any(arrays[name].shape != shape for name, shape in shapes.items()) or at[-1] > rounds:
        raise ValueError("its rounds are cut short")
    if (
        (whole and at[-1] != rounds)
        or at[0] < 0
        or (np.diff(at) < 0).any()
        or not _are_losses(arrays["loss"], measured)
    ):
        raise ValueError("its evaluations are cut short or damaged")


def _are_losses(losses: npt.NDArray[Any], measured: bool) -> bool:
    """Tell whether every loss is a number; where nothing need be measured, as in a federation, they may all be NaN."""
    return bool(np.isfinite(losses).all() or (not measured and np.isnan(losses).all()))
