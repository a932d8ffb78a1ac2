"""An estimator and two codecs that remember, as a user would write them: no engine knows of any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import Array, cast, host, zeros
from lasg.core.codecs import Noise, State, StatefulCodec
from lasg.core.estimators import Estimator
from lasg.core.rules import Record
from lasg.errors import LasgError


@dataclass(frozen=True)
class Momentum(Estimator):
    """v <- beta v + (1 - beta) g, in every round in which a worker computes."""

    beta: float = 0.8

    def init(self, workers: int, theta: Array) -> State:
        return {"v": zeros((workers, theta.shape[-1]), theta)}

    def update(self, now: Record, state: State) -> tuple[Array, State]:
        v = self.beta * state["v"] + (1 - self.beta) * now.grad
        return v, {"v": v}


@dataclass(frozen=True)
class Unsaid(Momentum):
    """Momentum, less some of what was said."""

    def said(self, decoded: Array, state: State) -> State:
        return {"v": state["v"] - 0.3 * decoded}


@dataclass(frozen=True)
class TopK(StatefulCodec):
    """The largest entries; the others are left for the next message.

    Messages have numbers, so that one which is lost, or heard twice, is found out.
    """

    keep: int = 7

    def init(self, workers: int, like: Array) -> State:
        return {"left": zeros((workers, like.shape[-1]), like), **self.init_decoder(workers, like)}

    def init_decoder(self, workers: int, like: Array) -> State:
        return {"number": zeros((workers,), like)}

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:
        wanted, numbers = host(state["left"] + rows), host(state["number"])
        places = np.sort(np.argsort(-np.abs(wanted), axis=-1, kind="stable")[:, : self.keep], axis=-1)
        values = np.take_along_axis(wanted, places, -1)
        left = wanted.copy()
        np.put_along_axis(left, places, 0, -1)
        parts = zip(numbers, places, values, strict=True)
        messages = [np.int32(n).tobytes() + i.astype("<i4").tobytes() + v.tobytes() for n, i, v in parts]
        return messages, {"left": cast(left, rows), "number": state["number"] + 1}

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        rows: npt.NDArray[np.float64] = np.zeros((len(messages), len(like)))
        for row, message in zip(rows, messages, strict=True):
            places = np.frombuffer(message, "<i4", self.keep, 4)
            row[places] = np.frombuffer(message, host(like).dtype, self.keep, 4 + places.nbytes)
        return cast(rows, like)

    def update_decoder(self, messages: Sequence[bytes], like: Array, state: State) -> tuple[Array, State]:
        numbers = [int(np.frombuffer(message, "<i4", 1)[0]) for message in messages]
        if numbers != host(state["number"]).astype(int).tolist():
            raise LasgError(f"messages {numbers} came, and {state['number']} were due")
        return self.decode(messages, like), {"number": state["number"] + 1}


@dataclass(frozen=True)
class Coarse(StatefulCodec):
    """Whole multiples of a grid; what rounding took away is left for the next message. Longer than most codecs'."""

    grid: float = 1e-3

    def init(self, workers: int, like: Array) -> State:
        return {"left": zeros((workers, like.shape[-1]), like)}

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:
        wanted = host(state["left"] + rows)
        counts = np.rint(wanted / self.grid).astype("<i4")
        return [count.tobytes() for count in counts], {"left": cast(wanted - self.grid * counts, rows)}

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        counts = np.frombuffer(b"".join(messages), "<i4").reshape(len(messages), len(like))
        return cast(self.grid * counts, like)

    def length(self, p: int, itemsize: int = 4) -> int:
        return 4 * p
