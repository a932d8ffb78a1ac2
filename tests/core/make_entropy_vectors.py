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


def _dithered(name: str, bound: int, p: int, scale: float, norm: float | None) -> dict[str, Any]:
    """Return messages of entries with scales of their own, correlated, and of a scale, wide."""
    rng = np.random.default_rng(p)
    coder = AdaptiveCoder(lowest=-bound, highest=bound, wide=1, digits=4, dithered=True, norm=norm)
    state, arrays, noises, messages = coder.init(1, p + 1), [], [], []
    for _ in range(4):
        x = scale * (rng.standard_normal(p) + rng.standard_normal())
        noise = rng.integers(0, 1 << 20, p) / (1 << 20)
        levels = (np.sign(x) * np.floor(np.abs(x) + noise)).clip(-bound, bound)
        symbols = np.append(levels, rng.integers(900, 1000)).astype(np.int32)
        [message], state = coder.encode_rows(symbols[None], state, noise[None])
        arrays.append(symbols.tolist())
        noises.append((noise * (1 << 20)).astype(int).tolist())
        messages.append(message.hex())
    return {"name": name, "bound": bound, "norm": norm, "symbols": arrays, "noise": noises, "messages": messages}


def _by_noise(name: str, p: int, scale: float) -> dict[str, Any]:
    """Return a long message with tables by the noise."""
    rng = np.random.default_rng(p)
    noise = rng.integers(0, 32, p) / 32
    symbols = np.floor(scale * rng.exponential(size=p) + noise).astype(int).clip(0, 15)
    message = encode_symbols(symbols, noise).hex()
    return {"name": name, "symbols": symbols.tolist(), "noise": (32 * noise).astype(int).tolist(), "message": message}


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
        "dithered": [
            _dithered("a norm", 7, 12, 1.2, 7.0),
            _dithered("no norm", 127, 9, 20.0, None),
            _dithered("many entries", 3, 70, 0.2, 3.0),
        ],
        "symbols by noise": [_by_noise("4 tables", 900, 0.2)],
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
