"""What a run leaves behind: the loss and the ledger at every evaluation, and who uploaded in every round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.core.ledger import COUNTS, Ledger
from lasg.core.training import Round
from lasg.runs.spec import Spec
from lasg.trackers import of_round

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
        self._rounds: list[tuple[Any, ...]] = []
        self._silent = np.full(len(watch), np.nan)
        self._stored: Arrays = {}
        self.broken: list[tuple[int, int]] = []
        """(round, worker) of every gradient that was NaN or infinite."""

    def add_evaluation(self, ledger: Ledger, loss: float, accuracy: float | None) -> None:
        """Add an evaluation."""
        self.evaluations.append((*ledger.row(), loss, np.nan if accuracy is None else accuracy))

    def add_round(self, finished: Round) -> None:
        """Add a round."""
        left = self._silent if finished.left is None else finished.left[self.watch]
        self._rounds.append((finished.uploaded, finished.threshold, finished.tau[self.watch], left))
        if finished.broken is not None:
            self.broken += [(finished.k, m) for m in np.flatnonzero(finished.broken).tolist()]

    def figures(self, k: int) -> dict[str, float]:
        """Return what round k says (`trackers.of_round`), the left side as the mean of the watched workers'."""
        stored = len(self._stored["threshold"]) if self._stored else 0
        if k >= stored:
            uploaded, threshold, _, left = self._rounds[k - stored]
            return of_round(uploaded, threshold, left)
        packed, threshold, left = (self._stored[name][k] for name in ("uploaded", "threshold", "watched_left"))
        return of_round(np.unpackbits(packed, count=self.workers), float(threshold), left)

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
        n, w = len(self._rounds), len(self.watch)
        kinds = ((np.bool_, (n, self.workers)), (np.float64, (n,)), (np.int64, (n, w)), (np.float64, (n, w)))
        for i, (name, (kind, shape)) in enumerate(zip(ROUNDS, kinds, strict=True)):
            rows: npt.NDArray[Any] = np.array([row[i] for row in self._rounds], kind).reshape(shape)
            rows = np.packbits(rows, axis=1) if name == "uploaded" else rows
            self._stored[name] = np.concatenate([self._stored[name], rows]) if name in self._stored else rows
        self._rounds = []

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from stored arrays."""
        columns = [arrays[name].tolist() for name in EVALUATED]
        self.evaluations = list(zip(*columns, strict=True))
        self._stored = {name: arrays[name] for name in ROUNDS}
        self.broken = [(k, m) for k, m in arrays["broken"].tolist()] if "broken" in arrays else []
        self._rounds = []


def check(arrays: Mapping[str, npt.NDArray[Any]], spec: Spec, *, whole: bool, measured: bool = True) -> None:
    """Refuse, with a ValueError, arrays that are not the trace of a run of `spec`; `whole`: that went to its end."""
    kinds = dict.fromkeys(COUNTS, "i") | {"loss": "f", "accuracy": "f"} | dict(zip(ROUNDS, "ufif", strict=True))
    for name, kind in kinds.items():
        if name not in arrays:
            raise ValueError(f"it has no array {name}")
        if arrays[name].dtype.kind != kind:
            raise ValueError(f"its array {name} holds {arrays[name].dtype}")
    if len({arrays[name].shape for name in EVALUATED}) != 1 or arrays["loss"].ndim != 1 or not len(arrays["loss"]):
        raise ValueError("its evaluations are cut short")
    rounds, watched = len(arrays["threshold"]), len(spec.watched)
    shapes = [(rounds, -(-spec.workers // 8)), (rounds,), (rounds, watched), (rounds, watched)]
    at, losses = arrays["rounds"], arrays["loss"]
    if [arrays[name].shape for name in ROUNDS] != shapes or at[-1] > rounds:
        raise ValueError("its rounds are cut short")
    # Where nothing need be measured, as in a federation, the losses may all be NaN.
    are_losses = np.isfinite(losses).all() or (not measured and np.isnan(losses).all())
    if (whole and at[-1] != rounds) or at[0] < 0 or (np.diff(at) < 0).any() or not are_losses:
        raise ValueError("its evaluations are cut short or damaged")
