"""theta at every worker's last upload, stored once a round it was used in, not once a worker."""

from __future__ import annotations

import numpy as np

from lasg.core.arrays import Array, IntArray, Mask, host, sq, zeros


class Iterates:
    """The models at which `workers` workers last uploaded: at most min(workers, D) + 1 of them are distinct."""

    def __init__(self, workers: int, theta: Array) -> None:
        self.points = zeros((1, theta.shape[-1]), theta)
        self.slot: IntArray = np.zeros(workers, np.int64)

    def keep(self, theta: Array, uploaded: Mask) -> None:
        """Remember `theta` as the last model of the workers that uploaded."""
        used = np.bincount(self.slot[~uploaded], minlength=len(self.points))
        free = int(used.argmin())
        if used[free]:
            free = len(self.points)
            # Beside the new one at most one model a worker is in use: more room is never needed.
            grown = zeros((min(2 * free, len(self.slot) + 1), self.points.shape[-1]), self.points)
            grown[:free] = self.points
            self.points = grown
        self.points[free] = theta
        self.slot[uploaded] = free

    def rows(self, workers: IntArray | None = None) -> Array:
        """Return the stored model of each worker: `(n, p)`, or for tensors a list of views, which copies nothing."""
        slot = self.slot if workers is None else self.slot[workers]
        if isinstance(self.points, np.ndarray):
            return self.points.take(slot, 0)
        return [self.points[i] for i in slot.tolist()]

    def moved(self, theta: Array, workers: IntArray | None = None) -> Array:
        """Return ||theta - stored||^2 for each worker, at the cost of one distance a distinct model."""
        distances = host(sq(self.points - theta))
        return distances[self.slot if workers is None else self.slot[workers]]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        return {"points": self.points, "slot": self.slot}

    def restore(self, state: dict[str, Array]) -> None:
        """Take a checkpoint's state."""
        self.points, self.slot = state["points"], host(state["slot"])
