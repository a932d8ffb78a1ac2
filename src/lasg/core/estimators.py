"""What a worker makes of its gradients before anything is said: an extension point with no default.

A rule sees the gradients themselves, as the paper has it; what is said, and believed, is what the estimator makes of
them.

An estimator is a frozen setting with `init` and `update`; its state is a dict of arrays with a row per worker, which
every engine checkpoints. docs/extending.md has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from lasg.core.arrays import Array
from lasg.core.codecs import State


class Estimator(ABC):
    """Turns the gradients of a round into the contributions of that round."""

    @abstractmethod
    def init(self, workers: int, theta: Array) -> State:
        """Return the state of so many workers that have computed nothing yet."""

    @abstractmethod
    def update(self, k: int, gradients: Array, state: State) -> tuple[Array, State]:
        """Return the contributions `(n, p)` of the workers that computed in round k, and their new state."""
