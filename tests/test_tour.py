"""The notebook of the examples runs, and is committed with small outputs of that run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.tour import TOUR, executed

LARGEST = 200_000
"""Bytes of a notebook that a reader waits for."""


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: Any) -> set[str]:
    """Return what a cell shows: text, a picture, a table."""
    return {kind for output in cell["outputs"] for kind in output.get("data", {"text": ""})}


def test_the_tour_runs_and_shows_what_it_is_committed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install 'lasg[dev]'")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's own sockets and loops
        now = executed(TOUR, tmp_path)
    committed = json.loads(TOUR.read_text(encoding="utf-8"))
    before, after = code_cells(committed), code_cells(now)
    assert [kinds(cell) for cell in before] == [kinds(cell) for cell in after]
    assert all(cell["execution_count"] == i + 1 for i, cell in enumerate(before)), "run from top to bottom"
    assert any("image/png" in kinds(cell) for cell in after)
    assert any("text/html" in kinds(cell) for cell in after)
    assert not [output for cell in after for output in cell["outputs"] if output["output_type"] == "error"]
    assert (tmp_path / "report.html").stat().st_size > 1_000_000


def test_the_committed_notebook_is_small_and_names_no_folder_of_a_machine() -> None:
    text = TOUR.read_text(encoding="utf-8")
    assert len(text) < LARGEST
    assert "/tmp/" not in text
    assert "/home/" not in text
