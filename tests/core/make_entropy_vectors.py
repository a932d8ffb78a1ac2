"""Write `entropy_vectors.json`: `python -m tests.core.make_entropy_vectors`. Only for a format with a new name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lasg.core.entropy import AdaptiveCoder, encode_positions, encode_symbols


def _adaptive(name: str, bound: int, p: int, scale: float) -> dict[str, Any]:
    rng = np.random.default_rng(p)
    coder = AdaptiveCoder(lowest=-bound, highest=bound)
    row, arrays, messages = coder.init_row(p), [], []
    for _ in range(3):
        symbols = np.round(scale * rng.standard_t(3, p)).clip(-bound, bound).astype(np.int32)
        message, row = coder.encode(symbols, row)
        arrays.append(symbols.tolist())
        messages.append(message.hex())
    return {"name": name, "lowest": -bound, "highest": bound, "symbols": arrays, "messages": messages}


def make() -> dict[str, Any]:
    """Return examples of every kind of message."""
    rng = np.random.default_rng(0)
    arrays = {
        "none": np.zeros(0),
        "one symbol": np.full(9, -2),
        "mostly zeros": np.round(0.3 * rng.standard_normal(200)),
        "8 bits": np.round(20 * rng.standard_normal(60)),
        "not negative": rng.geometric(0.3, 100),
        "large": np.array([-(2**31), 2**31 - 1, 0, 128, -129, 65_000, 1, -1]),
    }
    chosen = {
        "none": (np.zeros(0), 10),
        "few": (np.array([0, 5, 21]), 22),
        "far": (np.array([7, 10**9 - 1]), 10**9),
        "groups": (np.sort(rng.choice(1000, 90, replace=False)), 20_000),
    }
    return {
        "symbols": [
            {"name": name, "symbols": array.astype(int).tolist(), "message": encode_symbols(array.astype(int)).hex()}
            for name, array in arrays.items()
        ],
        "adaptive": [
            _adaptive("2 bits", 1, 22, 0.4),
            _adaptive("8 bits", 127, 30, 15),
            _adaptive("int32", 2**31 - 1, 8, 1e7),
        ],
        "positions": [
            {
                "name": name,
                "p": p,
                "positions": at.astype(int).tolist(),
                "message": encode_positions(at.astype(int), p).hex(),
            }
            for name, (at, p) in chosen.items()
        ],
    }


if __name__ == "__main__":
    path = Path(__file__).parent / "entropy_vectors.json"
    lines = [f' "{kind}": [\n  ' + ",\n  ".join(map(json.dumps, vectors)) + "\n ]" for kind, vectors in make().items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
