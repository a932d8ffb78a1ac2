"""The benchmark of stability runs, small; it calls divergence what it says it does."""

from __future__ import annotations

from pathlib import Path

from tests.benchmark import load


def test_a_step_that_is_too_large_is_seen_and_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    bench, path = load("stability"), tmp_path / "rows.csv"
    some = [bench.Case("digits", "homogeneous", "SGD .9", eta, 3, 7) for eta in (0.05, 1000.0)]
    rows: list[dict[str, object]] = []
    bench.compare(rows, some, bench.ALGORITHMS, None, path)
    assert [bench.diverged(row) for row in rows] == [False, False, True, True]
    assert float(rows[0]["last_loss"]) < float(rows[0]["first_loss"])  # type: ignore[arg-type]
    again = bench.stored(path)
    bench.compare(again, some, bench.ALGORITHMS, None, path)
    assert len(again) == 4
    assert "2 combinations; DiLoCo holds in 1, lasg-local diverges in 0 of these" in bench.show(again)


def test_there_are_enough_combinations_of_task_partition_step_and_length_of_rounds() -> None:
    found = list(load("stability").cases())
    assert len(set(found)) == len(found) >= 24
    for what in ("task", "setting", "inner", "H"):
        assert len({getattr(case, what) for case in found}) >= 2
