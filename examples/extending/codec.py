"""Two codecs: the largest entries of a vector, which keeps no state; and parts of it in turn, which does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import lasg
from lasg.core.arrays import cast, host, zeros
from lasg.core.codecs import Noise, State, StatefulCodec


@dataclass(frozen=True)
class Largest(lasg.Codec):
    """The k entries of the largest magnitude, each as its place and its value: 8 k bytes."""

    k: int

    def encode(self, rows: Any, noise: Noise) -> list[bytes]:  # rows (n, p); noise() would draw uniform numbers
        messages = []
        for row in host(rows):
            places = np.sort(np.argsort(-abs(row), kind="stable")[: self.k])
            messages.append(places.astype("<u4").tobytes() + row[places].astype("<f4").tobytes())
        return messages

    def decode(self, messages: Sequence[bytes], like: Any) -> Any:  # rows (n, p) of the kind and dtype of like
        rows = np.zeros((len(messages), len(like)))
        for row, message in zip(rows, messages, strict=True):
            half = len(message) // 2
            row[np.frombuffer(message[:half], "<u4")] = np.frombuffer(message[half:], "<f4")
        return cast(rows, like)

    def length(self, p: int, itemsize: int = 4) -> int:  # known before: receivers refuse any other, routes plan with it
        return 8 * min(self.k, p)


@dataclass(frozen=True)
class InTurn(StatefulCodec):
    """One part of the entries per upload, one after the other; the others are as they were last heard."""

    parts: int

    def init(self, workers: int, like: Any) -> State:  # what the encoder remembers: a row per worker
        return {"turn": zeros((workers,), like)}

    def init_decoder(self, workers: int, like: Any) -> State:
        return {"turn": zeros((workers,), like), "row": zeros((workers, len(like)), like)}

    def update(self, rows: Any, noise: Noise, state: State) -> tuple[list[bytes], State]:
        parts = zip(host(rows), state["turn"], strict=True)
        messages = [row[int(turn) :: self.parts].astype("<f4").tobytes() for row, turn in parts]
        return messages, {"turn": (state["turn"] + 1) % self.parts}  # new arrays: the old ones may be needed again

    def update_decoder(self, messages: Sequence[bytes], like: Any, state: State) -> tuple[Any, State]:
        rows = host(state["row"]).copy()
        for row, message, turn in zip(rows, messages, state["turn"], strict=True):
            row[int(turn) :: self.parts] = np.frombuffer(message, "<f4")
        decoded = cast(rows, like)
        return decoded, {"turn": (state["turn"] + 1) % self.parts, "row": decoded}

    def decode(self, messages: Sequence[bytes], like: Any) -> Any:  # as if they were the first
        return self.update_decoder(messages, like, self.init_decoder(len(messages), like))[0]


if __name__ == "__main__":
    spec = lasg.task("digits").spec("sgd", iterations=300)
    # What Largest leaves out is never said under replace; under difference it is part of the next message.
    for name, codec in (("wk2+difference", Largest(64)), ("always+residual", Largest(64)), ("wk2+dense", InTurn(4))):
        run = lasg.train(spec, name, codec=codec, folder=f"runs/{name}-{type(codec).__name__}")
        uploads, bits, loss = (run.trace[key][-1] for key in ("uploads", "bits_up", "loss"))
        print(f"{run.spec.algorithm}: {uploads} uploads, {bits} bits, loss {loss:.4f}")
