"""The benchmark of bits to a loss runs, small, and what it shows holds on embedded data."""

from __future__ import annotations

from pathlib import Path

import pytest

from lasg.runs import factories
from lasg.runs.tasks import task
from tests.benchmark import load


def test_regressions_are_run_to_the_loss_of_laqsg_and_say_less(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = load("say_less")
    monkeypatch.setattr(bench, "BUDGETS", {"breast-cancer": 4e4})
    rows = {row["algorithm"]: row for row in bench.regression_rows(("breast-cancer", "heterogeneous", 0), "", False)}
    assert list(rows) == ["laqsg-wk2", "sgd", *bench.REGRESSIONS]
    coded, plain, lazy = rows["wk2+qsgd4+ec"], rows["laqsg-wk2"], rows["lasg-vr"]
    assert (coded["loss"], coded["uploads"]) == (plain["loss"], plain["uploads"])  # the same models
    assert coded["bits_up"] < 0.8 * plain["bits_up"]
    assert lazy["reached"]
    assert lazy["bits_up"] < 0.5 * plain["bits_up"]


def test_a_drop_in_says_far_less_and_learns() -> None:
    bench = load("say_less")
    problem = factories.problem(task("digits").spec("sgd", workers=2, model="mlp", lam=0.0))
    done = {}
    for name, given in bench.DROP_IN["cnn", "momentum"].items():
        training = bench.drop_in_training(problem, given, 0.02, 2, 0)
        for _ in range(150):
            training.step()
        done[name] = training
    ddp = done.pop("ddp")
    for training in done.values():
        assert training.ledger.bits_up < ddp.ledger.bits_up / 20
        assert training.loss() < 1.3
    assert ddp.ledger.uploads == 300


def test_rows_are_kept_and_the_table_is_printed_from_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = load("say_less")
    row = {"case": "a 0", "task": "a", "algorithm": "x", "loss": "0.1", "reached": True, "rounds": 3, "gradients": 6}
    row |= {"bits_up": 2_000_000, "bits_down": 4_000_000}
    bench.write(tmp_path / "rows.csv", [row, row | {"case": "a 1", "bits_up": 4_000_000}])
    bench.print_table(bench.read(tmp_path / "rows.csv"), ("task",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "| a | x | 2 | 2 | 0.1 |  | 3 | 6 | 3 | 2 to 4 | 4 |"
