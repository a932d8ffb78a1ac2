"""Record the traces of all cells on this machine: `python -m tests.golden.record FOLDER`.

Machines differ in the last digits, so each kind has a file of its own, named by how it computes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from tests.golden import engines
from tests.golden.cells import CELLS, LAZY, Cell
from tests.golden.engines import Trace
from tests.golden.machine import machine

KIND, MACHINE = "cells", "arithmetic"
"""Keys of the file that are no cell's: what each cell is, and how the recording machine computes."""


def file_in(folder: Path) -> Path:
    """Return where the traces of machines that compute as this one are."""
    return folder / f"traces-{machine()[:8]}.npz"


def main(folder: Path) -> None:
    """Run every cell, and write one file."""
    path = file_in(folder)
    arrays = {
        KIND: np.array([cell.described() for cell in CELLS]),
        MACHINE: np.array(machine()),
    }
    for engine in sorted({cell.engine for cell in CELLS} - {LAZY}):
        began = time.monotonic()
        cells = [cell for cell in CELLS if cell.engine == engine or (engine == "ranks" and cell.engine == LAZY)]
        for cell, trace in zip(cells, traces(cells), strict=True):
            arrays |= {f"{cell.name}/{key}": value for key, value in trace.items()}
        print(f"{engine}: {len(cells)} cells in {time.monotonic() - began:.0f} s")
    np.savez_compressed(path, allow_pickle=False, **arrays)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


def traces(cells: list[Cell]) -> list[Trace]:
    """Run cells of one engine; those on ranks share them."""
    if cells[0].engine in ("ranks", LAZY):
        return engines.on_ranks(cells)
    run = engines.simulate if cells[0].engine == "simulation" else engines.federate
    return [run(cell) for cell in cells]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m tests.golden.record FOLDER (about a minute)")
    main(Path(sys.argv[1]))
