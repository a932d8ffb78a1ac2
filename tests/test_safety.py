"""The benchmark that shows that the default does no harm runs, small, and its table judges as it says."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark import load
from tests.transports.ranks import on_ranks

ROOT = Path(__file__).resolve().parents[1]


def safety() -> Any:
    """Return the benchmark, with less to do."""
    return load("safety", EPOCHS=2, IMAGES=640, TEXT_STEPS=6)


def outcomes() -> list[tuple[float, int, float]]:
    """On a rank: a network with BatchNorm and a transformer, with both methods."""
    bench = safety()
    images = bench.images_of(None)
    return [
        tuple(bench.train(bench.COMBINATIONS[i], method, 0, given))[:3]
        for i, given in ((0, images), (8, None))
        for method in ("ddp", "default")
    ]


def test_both_methods_train_the_same_model_on_the_same_data_with_a_quarter_of_the_bytes() -> None:
    first, second = on_ranks(2, outcomes)
    assert first == second
    (cnn, _, dense), (quantised, uploads, short), (loss, _, _), (other, _, _) = first
    assert cnn > 60
    assert abs(quantised - cnn) < 5
    assert uploads == 2 * 20
    assert 3.5 < dense / short < 4
    assert other == pytest.approx(loss, rel=0.01)


def test_worse_than_the_bar_and_two_standard_errors_is_harm() -> None:
    bench = safety()
    cnn, text = bench.COMBINATIONS[0], bench.COMBINATIONS[8]

    def pairs(*numbers: tuple[float, float]) -> list[tuple[dict[str, float], dict[str, float]]]:
        rest = {"megabytes": 4.0, "uploads": 8}
        return [({"measure": ddp, **rest}, {"measure": other, **rest}) for ddp, other in numbers]

    assert bench.summary(cnn, "default", pairs((95.0, 94.6), (95.0, 94.6)))["no_harm"]
    assert not bench.summary(cnn, "default", pairs((95.0, 94.4), (95.0, 94.4)))["no_harm"]
    assert bench.summary(cnn, "default", pairs((95.0, 96.0), (95.0, 93.0)))["no_harm"]  # chance
    assert not bench.summary(text, "default", pairs((2.0, 2.03), (2.0, 2.03)))["no_harm"]


def test_the_committed_table_is_that_of_the_committed_runs_and_shows_no_harm_by_default() -> None:
    bench = safety()
    with (ROOT / "results" / "safety.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "default"]
    assert {tuple(row[name] for name in bench.Combination._fields) for row in rows} == {
        tuple(map(str, one)) for one in bench.COMBINATIONS
    }
    found = bench.table(ROOT / "results" / "safety-runs.csv", "default")
    assert [{name: str(value) for name, value in row.items()} for row in found] == rows
    assert all(row["no_harm"] == "True" and int(row["seeds"]) >= 5 for row in rows)
