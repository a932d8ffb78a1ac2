"""A codec of your own is two methods: here, half precision, 16 bits an entry."""

from typing import Any

import numpy as np

import lasg


class Half:
    """Sends every entry as a float16."""

    def encode(self, rows: Any, noise: Any) -> list[bytes]:  # rows (n, p); noise() gives random numbers
        return [row.astype("<f2").tobytes() for row in rows]

    def decode(self, messages: Any, like: Any) -> Any:  # back to rows (n, p), in the dtype of like
        return np.stack([np.frombuffer(m, "<f2").astype(like.dtype) for m in messages])


if __name__ == "__main__":
    spec = lasg.task("digits").spec("lasg-wk2", iterations=300)
    trace = lasg.train(spec, codec=Half(), folder="runs/own-codec").trace
    print(f"{trace['uploads'][-1]} uploads, {trace['bits_up'][-1]} bits; loss {trace['loss'][-1]:.4f}")
