"""Real runs, small, for pictures and pages."""

from pathlib import Path

import pytest

from lasg.core.algorithms import ALGORITHMS
from lasg.runs.runner import run
from lasg.runs.store import Run
from tests.runs.samples import small


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Return the twelve algorithms, two seeds each."""
    folder = tmp_path_factory.mktemp("runs")
    specs = [small(name, seed=seed, eta=0.5, iterations=120) for name in ALGORITHMS for seed in (0, 1)]
    return [run(spec, folder / spec.label) for spec in specs]


@pytest.fixture(scope="session")
def folder(runs: list[Run]) -> Path:
    return runs[0].folder.parent
