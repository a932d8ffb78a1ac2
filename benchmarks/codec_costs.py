"""What it costs to encode and to decode a long vector, beside a copy of it.

    python benchmarks/codec_costs.py [--entries 1000000 10000000] [--turns 5] [--codecs qsgd4:512 ...] [--csv FILE]

Every codec encodes one float32 vector of heavy-tailed entries (Student's t with 3 degrees of freedom), and decodes its
message. Beside it, in the same turns: the vector is copied to new memory (`torch.Tensor.clone`, and `numpy.copy`, which
gets large pages), and to memory that is there already. Each figure is the least of the turns, of processor time, with
one thread. "noise" are the random numbers of a vector alone.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from lasg import counter
from lasg.core.arrays import CACHED
from lasg.core.codec_names import parse
from lasg.core.codecs import Codec, StatefulCodec
from lasg.report.paper_tables import to_csv

RESULTS = Path(__file__).resolve().parents[1] / "results"
CODECS = (
    "dense",
    *(f"qsgd{bits}:512" for bits in (2, 3, 4, 5, 6, 7, 8)),
    "qsgd8",
    "uniform4",
    "grid0.25",
    "sign:512",
    "topk0.01",
    "topk0.0156:chunk4096:2bit",
    "qsgd2:512+ec",
    "qsgd4:512+ec",
    "qsgd8:512+ec",
    "uniform4+ec",
    "grid0.25+ec",
    "sign:512+ec",
    "topk0.01+ec",
)
COPIES = ("clone", "copy", "copy in place")


def calls(codec: Codec, row: np.ndarray[Any, Any]) -> tuple[Callable[[], bytes], Callable[[bytes], Any]]:
    """Return what encodes the vector, and what decodes its message."""
    rows, draws = row[None], counter.Draws(0, 0, [0], len(row))
    if not isinstance(codec, StatefulCodec):
        return lambda: codec.encode(rows, draws)[0], lambda message: codec.decode([message], row)
    said, heard = codec.init(1, row), codec.init_decoder(1, row)
    return (
        lambda: codec.update(rows, draws, said)[0][0],
        lambda message: codec.decode_with([message], row, draws, heard)[0],
    )


def draw_all(p: int) -> None:
    """Draw the noise of a vector, piece by piece."""
    draws = counter.Draws(0, 0, [0], p)
    room = np.empty((1, CACHED), draws.dtype)
    for start in range(0, p, CACHED):
        end = min(start + CACHED, p)
        draws.part(slice(0, 1), slice(start, end), room[:, : end - start])


def measure(p: int, names: Sequence[str], turns: int) -> list[dict[str, Any]]:
    """Return a row per codec, and before them those of the copies and of the noise."""
    row = np.random.default_rng(0).standard_t(3, p).astype(np.float32)
    tensor, there = torch.from_numpy(row), np.empty_like(row)
    work: dict[str, Callable[[], Any]] = {
        "clone": tensor.clone,
        "copy": row.copy,
        "copy in place": lambda: np.copyto(there, row),
        "noise": lambda: draw_all(p),
    }
    coders = {name: calls(parse(name), row) for name in names}
    least: dict[tuple[str, str], float] = {}
    lengths: dict[str, int] = {}

    def run(name: str, way: str, call: Callable[[], Any]) -> Any:
        start = time.process_time_ns()
        result = call()
        least[name, way] = min(least.get((name, way), np.inf), (time.process_time_ns() - start) / p)
        return result

    for _ in range(turns):
        for name, call in work.items():
            run(name, "encode", call)
        for name, (encode, decode) in coders.items():
            message = run(name, "encode", encode)
            lengths[name] = len(message)
            run(name, "decode", functools.partial(decode, message))
    rows = []
    for name in [*work, *names]:
        found: dict[str, Any] = {"entries": p, "what": name, "bits": 8 * lengths[name] / p if name in lengths else ""}
        for way in ("encode", "decode"):
            took = least.get((name, way))
            found[f"{way}_ns"] = "" if took is None else round(took, 3)
            for copy in COPIES:
                column = f"{way}_per_{copy.replace(' ', '_')}"
                found[column] = "" if took is None else round(took / least[copy, "encode"], 2)
        rows.append(found)
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows as a table."""
    print("| entries | codec | bits per entry | encode, ns | x clone | x copy | decode, ns | x clone | x copy |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        cells = [f"{row['entries']:,}", row["what"], f"{row['bits']:.2f}" if row["bits"] else ""]
        for way in ("encode", "decode"):
            cells += [
                f"{row[key]:.2f}" if row[key] != "" else ""
                for key in (f"{way}_ns", f"{way}_per_clone", f"{way}_per_copy")
            ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Measure, print, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--codecs", nargs="+", default=CODECS)
    parser.add_argument("--csv", type=Path, default=RESULTS / "codecs.csv", help="where the rows are written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        rows = [row for p in options.entries for row in measure(p, options.codecs, options.turns)]
    show(rows)
    options.csv.write_text(to_csv(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
