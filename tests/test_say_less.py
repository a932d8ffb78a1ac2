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


def test_eight_steps_per_round_say_150_times_less_for_as_many_gradients() -> None:
    bench = load("say_less")
    problem = factories.problem(task("digits").spec("sgd", workers=2, model="mlp", lam=0.0, setting="homogeneous"))
    # An average of SGD's steps is SGD's step; one of Adam's, normalised with each worker's own noise, is shorter.
    for optimizer, eta, most in (("momentum", 0.02, 1.02), ("adamw", 0.002, 1.3)):
        methods = bench.DROP_IN["text-lm", optimizer]
        ddp, eight = (bench.drop_in_training(problem, methods[name], eta, 2, 0) for name in ("ddp", "eight steps"))
        for training, rounds in ((ddp, 160), (eight, 20)):
            for _ in range(rounds):
                training.step()
        assert eight.ledger.gradients == ddp.ledger.gradients
        assert eight.ledger.bits_up < ddp.ledger.bits_up / 150
        assert eight.loss() < most * ddp.loss()


def test_what_lost_is_run_once() -> None:
    bench = load("say_less")
    cases = list(bench.drop_in_cases(range(5)))
    assert cases.count(("text-lm", "adamw", "random", 2, "own step", 0)) == 1
    assert sum(case[0] == "text-lm" and case[4] == "own step" for case in cases) == 1
    yardsticks = [case for case in cases if case[4] in ("ddp", "ddp, short memory")]
    # Networks, optimizers, splits and workers, seeds; and once AdamW as it comes, on text-lm.
    assert len(yardsticks) == 2 * 2 * 4 * 5 + 1


def test_a_drop_in_is_printed_beside_the_same_seeds_and_step_size(capsys: pytest.CaptureFixture[str]) -> None:
    bench = load("say_less")
    ddp = {"network": "a", "optimizer": "b", "split": "c", "workers": 2, "eta": 0.1, "method": "ddp", "seed": 0}
    ddp |= {"accuracy": "0.9", "loss": "2.0", "bits_up": 400, "bits_down": 800}
    own = ddp | {"method": "own", "accuracy": "0.91", "loss": "1.9", "bits_up": 2, "bits_down": 8}
    later = {"seed": 1, "loss": "1.0"}
    other = own | {"eta": 0.2}  # no yardstick
    bench.print_beside_ddp([ddp, own, ddp | later, own | later | {"accuracy": "0.88"}, other])
    lines = capsys.readouterr().out.splitlines()
    numbers = "89.50 | 90.00 | -0.50 (-2.00 to +1.00) | 1.4500 | 1.5000 | -2.50 (-5.00 to +0.00)"
    assert lines[2:] == [f"| a, b, c, 2 | own | 2 | {numbers} | 200 | 100 |"]


def test_rows_are_kept_and_the_table_is_printed_from_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = load("say_less")
    row = {"case": "a 0", "task": "a", "algorithm": "x", "loss": "0.1", "reached": True, "rounds": 3, "gradients": 6}
    row |= {"bits_up": 2_000_000, "bits_down": 4_000_000}
    bench.write(tmp_path / "rows.csv", [row, row | {"case": "a 1", "bits_up": 4_000_000}])
    bench.print_table(bench.read(tmp_path / "rows.csv"), ("task",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "| a | x | 2 | 2 | 0.1 |  | 3 | 6 | 3 | 2 to 4 | 4 |"
