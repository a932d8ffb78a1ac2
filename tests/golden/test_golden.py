"""What the code computes now is, bit for bit, what it computed when the traces were recorded."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.golden.cells import CELLS, LAZY, PROBLEMS, Cell
from tests.golden.engines import Trace
from tests.golden.machine import machine
from tests.golden.record import KIND, MACHINE, file_in, traces

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("traces-*.npz"))
ON_RANKS = tuple(cell for cell in CELLS if cell.engine in ("ranks", LAZY))
GROUPS = tuple(dict.fromkeys(cell.group for cell in CELLS))
CARRIED = tuple(group for group in GROUPS if not group.startswith("simulation"))
SENT = "sent"
"""The key of what really travelled, which may change for a good reason while no run does."""
Recorded = Callable[[Cell], Trace]
Computed = Callable[[str], dict[Cell, Trace]]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Return what was recorded of a cell."""
    path = file_in(FOLDER)
    if not path.is_file():
        pytest.skip("this machine's arithmetic has other last digits than those of the recorded traces")
    with np.load(path, allow_pickle=False) as file:
        assert str(file[MACHINE]) == machine()
        kept: dict[str, Trace] = {}
        for name in file.files:
            cell, _, key = name.rpartition("/")
            kept.setdefault(cell, {})[key] = file[name]
    return lambda cell: kept[cell.name]


@pytest.fixture(scope="module")
def computed() -> Computed:
    """Return what the cells of a group give now; one pair of ranks runs all that are on ranks."""

    @functools.cache
    def on_ranks() -> list[Trace]:
        return traces(list(ON_RANKS))

    @functools.cache
    def of(group: str) -> dict[Cell, Trace]:
        cells = [cell for cell in CELLS if cell.group == group]
        if cells[0] in ON_RANKS:
            return {cell: trace for cell, trace in zip(ON_RANKS, on_ranks(), strict=True) if cell in cells}
        return dict(zip(cells, traces(cells), strict=True))

    return of


def differing(cell: Cell, found: Trace, expected: Trace, keys: Iterable[str]) -> str:
    """Say where a trace first differs from the recorded one; nothing if it is the same to the bit."""
    for key in keys:
        one, other = found[key], expected[key]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{cell.name}: {key} is {one.dtype} {one.shape}, not {other.dtype} {other.shape}"
        if one.tobytes() != other.tobytes():
            place = np.argwhere((one != other) & ~((one != one) & (other != other)))
            where = place[0].tolist() if len(place) else "in a sign or a NaN"
            return f"{cell.name}: {key} differs in {len(place)} of {one.size} numbers, first at {where}"
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_has_the_cells_that_are_listed_and_no_others(path: Path) -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    with np.load(path, allow_pickle=False) as file:
        assert [json.loads(one) for one in file[KIND]] == [json.loads(cell.described()) for cell in CELLS]


@pytest.mark.parametrize("group", GROUPS)
def test_every_run_is_the_recorded_one_to_the_bit(group: str, recorded: Recorded, computed: Computed) -> None:
    found = [
        differing(cell, trace, recorded(cell), [key for key in recorded(cell) if key != SENT])
        for cell, trace in computed(group).items()
    ]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize("group", CARRIED)
def test_as_many_bytes_travel_as_were_recorded(group: str, recorded: Recorded, computed: Computed) -> None:
    if not any(SENT in recorded(cell) for cell in CELLS if cell.group == group):
        pytest.skip("what such a federation sends has changed since the traces of this kind of machine were recorded")
    found = [differing(cell, trace, recorded(cell), [SENT]) for cell, trace in computed(group).items()]
    assert not any(found), "\n".join(filter(None, found))


def test_the_recorded_runs_had_silences_uploads_by_the_rule_and_uploads_by_force(recorded: Recorded) -> None:
    for cell in CELLS:
        trace, D = recorded(cell), cell.settings["D"]
        uploaded = np.unpackbits(trace["uploads"], axis=1)[:, : cell.settings["workers"]].astype(bool)
        if cell.algorithm.startswith(("sgd", "qsgd", "local-sgd", "always")):
            assert uploaded.all() == (cell.problem != "failing"), cell.name
            continue
        assert uploaded[0].all(), cell.name
        assert not uploaded.all(), cell.name
        by_rule = uploaded & (trace["left"] > trace["thresholds"][:, None])
        assert by_rule.any(), cell.name
        if cell.problem in PROBLEMS and not cell.more:
            assert (uploaded & ~by_rule)[2:].any(), cell.name
        assert max(np.diff(np.flatnonzero(mine)).max() for mine in uploaded.T) <= D + 1, cell.name
