"""The benchmark of bytes over Flower's grid runs, small, and goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")

from tests.benchmark import load


def test_bytes_to_an_accuracy_are_those_of_the_wire_and_what_is_there_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = load("federated")
    monkeypatch.setattr(bench, "CAP", 4)
    monkeypatch.setattr(bench, "STEPS", 5)
    images = bench.Images(None, "digits", "mlp", 1)
    played: list[Any] = []

    def play(data: Any, settings: Any, seed: int, target: float, most: float = float("inf")) -> Any:
        played.append((settings, seed))
        return bench.run(data, settings, seed, target, most)

    for _ in range(2):
        table = bench.Table(tmp_path / "rows.csv")
        bench.compare(table, images, ["fedavg", "sparseloco"], [0], 0.12, play)
    assert len(played) == 6  # two trials and one seed each, once
    rows = {row["method"]: row for row in bench.Table(tmp_path / "rows.csv").rows if row["kind"] == "final"}
    dense, sparse = rows["fedavg"], rows["sparseloco"]
    for row in (dense, sparse):
        assert row["reached"] == "True"
        assert int(row["bytes_up"]) > int(row["message_bytes"])
        assert int(row["uploads"]) == bench.NODES * int(row["rounds"])
    per_round = [int(row["message_bytes"]) / int(row["rounds"]) for row in (dense, sparse)]
    assert per_round[1] < 0.1 * per_round[0]
    assert "sparseloco" in bench.show(table.rows)
