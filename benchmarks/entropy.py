"""What the entropy coders need: bits per entry beside the order-0 entropy, nanoseconds per entry beside a copy.

    python benchmarks/entropy.py [--entries 1000000] [--turns 5]

Long arrays: codes of QSGD, and of a uniform grid; "given u": both sides know the noise. Beside them zstd level 1 (where
`zstandard` is installed) on the codes in the fewest bits that divide a byte, and Rice codes by NumPy. Short arrays:
messages of one worker, whose entries keep scales of their own. Positions: bits and nanoseconds per position, and times
a copy of the float32 vector they are in. Every time is the least of the turns (of short arrays the median message),
of processor time, with one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.core.codecs import QSGD
from lasg.core.entropy import AdaptiveCoder, decode_positions, decode_symbols, encode_positions, encode_symbols

Symbols = npt.NDArray[np.int32]
Noise = npt.NDArray[np.float64]
HEADS = ("kind", "entries", "bits", "entropy", "ratio", "ns enc", "ns dec", "zstd bits", "ns", "Rice bits", "ns")
WIDTHS = (28, 9, 8, 8, 7, 8, 8, 10, 6, 10, 6)


def qsgd(bits: int, rows: npt.NDArray[np.float64], bucket: int | None) -> tuple[Symbols, Noise]:
    """Return the levels that QSGD makes of a vector, and the noise that rounds them."""
    noise = np.random.default_rng(bits).random((1, len(rows)))
    levels = QSGD(bits=bits, bucket=bucket).quantise(rows[None], lambda: noise).symbols
    flat: Symbols = levels.reshape(-1)[: len(rows)].astype(np.int32)
    return flat, noise[0]


def long_arrays(p: int) -> dict[str, tuple[Symbols, Noise | None]]:
    """Return the codes by name, with their noise."""
    rng = np.random.default_rng(0)
    normal, heavy = rng.standard_normal(p), rng.standard_t(3, p)
    arrays: dict[str, tuple[Symbols, Noise | None]] = {}
    arrays |= {f"qsgd{bits}:512, normal": qsgd(bits, normal, 512) for bits in (2, 4, 8, 16)}
    arrays |= {f"qsgd{bits}:512, heavy": qsgd(bits, heavy, 512) for bits in (2, 4, 8)}
    arrays["qsgd8, one norm, heavy"] = qsgd(8, heavy, None)
    arrays["grid, heavy"] = np.round(rng.standard_t(2, p) / 8).clip(-127, 127).astype(np.int32), None
    return arrays


def entropy_of(symbols: Symbols) -> float:
    """Return the order-0 entropy in bits per entry."""
    share = np.unique(symbols, return_counts=True)[1] / len(symbols)
    return float(-(share * np.log2(share)).sum())


def least(turns: int, call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result and the least nanoseconds of a call."""
    times = []
    for _ in range(turns):
        start = time.process_time_ns()
        result = call()
        times.append(time.process_time_ns() - start)
    return result, min(times)


def zstd(symbols: Symbols) -> bytes | None:
    """Compress codes in 2, 4, 8 or 16 bits each by zstd level 1."""
    try:
        import zstandard
    except ImportError:
        return None
    highest = int(np.abs(symbols).max())
    width = next(width for width in (2, 4, 8, 16) if highest < 2 ** (width - 1))
    if width == 16:
        packed = symbols.astype(np.int16)
    else:
        codes = np.zeros(-(-len(symbols) // (8 // width)) * (8 // width), np.uint8)
        codes[: len(symbols)] = symbols & (2**width - 1)
        parts = [codes[i :: 8 // width] << np.uint8(width * i) for i in range(8 // width)]
        packed = np.bitwise_or.reduce(parts)
    compressed: bytes = zstandard.ZstdCompressor(level=1).compress(packed.tobytes())
    return compressed


def rice(symbols: Symbols) -> bytes:
    """Code by NumPy with the best Rice parameter: 0, 1, -1, 2, ... are 0, 1, 2, 3, ..."""
    numbers = np.where(symbols > 0, 2 * symbols - 1, -2 * symbols)
    low = min(range(16), key=lambda k: int((numbers >> k).sum()) + k * len(numbers))
    ends = np.cumsum((numbers >> low) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.uint8)
    unary[ends] = 1
    planes = [((numbers >> plane) & 1).astype(np.uint8) for plane in range(low)]
    return np.packbits(np.concatenate([*planes, unary])).tobytes()


def show(*cells: object) -> None:
    """Print a row of the table."""
    texts = [f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells]
    texts += [""] * (len(WIDTHS) - len(texts))
    print(
        " ".join(
            text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(texts, WIDTHS, strict=True))
        )
    )


def time_long(p: int, turns: int) -> None:
    """Print a row per long array, and the time of a copy."""
    for name, (symbols, noise) in long_arrays(p).items():
        time_message(name, symbols, None, turns, others=True)
        if noise is not None:
            time_message("  given u", symbols, noise, turns, others=False)
    _, copying = least(turns, np.zeros(p, np.float32).copy)
    show("copy of float32", p, "", "", "", f"{copying / p:.2f}", f"{copying / p:.2f}")


def time_message(name: str, symbols: Symbols, noise: Noise | None, turns: int, *, others: bool) -> None:
    """Print the row of a long array."""
    p = len(symbols)
    message, encoding = least(turns, partial(encode_symbols, symbols, noise))
    decoded, decoding = least(turns, partial(decode_symbols, message, p, noise=noise))
    assert np.array_equal(decoded, symbols)
    bits, ideal = 8 * len(message) / p, entropy_of(symbols)
    beside: list[object] = []
    if others:
        for other in (zstd, rice):
            coded, took = least(turns, partial(other, symbols))
            beside += ["", ""] if coded is None else [8 * len(coded) / p, f"{took / p:.1f}"]
    show(name, p, bits, ideal, bits / ideal, f"{encoding / p:.1f}", f"{decoding / p:.1f}", *beside)


def time_short(p: int, scale: float, messages: int = 50) -> None:
    """Print a row of messages that one worker sends one after the other."""
    rng = np.random.default_rng(p)
    own = scale * rng.lognormal(0, 1, p)
    arrays = [np.round(own * rng.standard_normal(p)).astype(np.int32) for _ in range(messages)]
    coder = AdaptiveCoder()
    sender = receiver = coder.init_row(p)
    length = 0
    encoding: list[float] = []
    decoding: list[float] = []
    for symbols in arrays:
        (message, sender), took = least(1, partial(coder.encode, symbols, sender))
        encoding.append(took)
        (decoded, receiver), took = least(1, partial(coder.decode, message, p, receiver))
        decoding.append(took)
        assert np.array_equal(decoded, symbols)
        length += len(message)
    entries = p * messages
    bits, ideal = 8 * length / entries, entropy_of(np.concatenate(arrays))
    others: list[object] = []
    for other in (zstd, rice):
        coded = [other(symbols) for symbols in arrays]
        others += ["", ""] if coded[0] is None else [8 * sum(len(each or b"") for each in coded) / entries, ""]
    name = f"{messages} messages, scale {scale}"
    times = [f"{statistics.median(each) / p:.0f}" for each in (encoding, decoding)]
    show(name, p, bits, ideal, bits / ideal, *times, *others)


def time_positions(p: int, share: float, turns: int) -> None:
    """Print a row of positions that are chosen at random."""
    positions = np.flatnonzero(np.random.default_rng(0).random(p) < share)
    count = len(positions)
    message, encoding = least(turns, partial(encode_positions, positions, p))
    decoded, decoding = least(turns, partial(decode_positions, message, p))
    assert np.array_equal(decoded, positions)
    _, copying = least(turns, np.ones(p, np.float32).copy)
    bits, exact = 8 * len(message) / count, count / p
    ideal = -np.log2(exact) - (1 - exact) / exact * np.log2(1 - exact)
    times = f"{encoding / count:.0f}", f"{decoding / count:.0f}"
    show(f"positions, {share:.2%}", count, bits, float(ideal), float(bits / ideal), *times)
    in_copies = f"{encoding / copying:.1f}", f"{decoding / copying:.1f}"
    show(f"  in copies of {p} float32", "", "", "", "", *in_copies)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    show(*HEADS)
    time_long(args.entries, args.turns)
    for p, scale in ((22, 0.5), (22, 3.0), (784, 0.2), (784, 5.0), (4000, 0.2)):
        time_short(p, scale)
    for share in (0.0025, 0.01, 64 / 4096, 0.1):
        time_positions(args.entries, share, args.turns)


if __name__ == "__main__":
    main()
