"""Networks on the command line: runs, comparisons, pretraining, what is said while they train."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lasg.cli import pretrained
from lasg.cli.live import MOST_COMPLAINTS, Meter, complaints, describe
from lasg.core.ledger import Ledger
from lasg.data import weights
from lasg.report import paper, savings
from lasg.runs.spec import Spec
from lasg.runs.status import Status
from lasg.runs.store import Run
from lasg.runs.tasks import task
from tests.runs.samples import made_up, small

from .conftest import Lasg

MLP = ("--set", "model=mlp", "--set", "iterations=30", "--set", "evaluate=10")


def test_a_network_is_trained_compared_and_reported_like_any_task(lasg: Lasg, tmp_path: Path) -> None:
    assert lasg("run", "digits", "-a", "lasg-wk2", *MLP).code == 0
    done = lasg("compare", "digits", "-a", "sgd,lasg-wk2,wk2+qsgd8:512", *MLP, "--json", "-j", 1)
    assert done.code == 0
    assert [row["algorithm"] for row in json.loads(done.out)] == ["sgd", "lasg-wk2", "wk2+qsgd8:512"]
    assert lasg("report", "runs", "-o", "report.html").code == 0
    assert "lasg run digits" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model=nope", "unknown model 'nope'"),
        ("model=cnn", "16 x 16 or more"),
        ("weights=missing", "is a network's setting"),
        ("clip=-1", "clip must be a positive number"),
        ("patience=0", "patience must be an integer >= 1"),
        ("data=images:nowhere", "must name a folder or zip in tiny-imagenet's layout"),
        ("data=tiny-imagenet-20", "tiny-imagenet-200.zip"),
    ],
)
def test_wrong_input_is_one_line(lasg: Lasg, change: str, words: str) -> None:
    done = lasg("run", "digits", "-a", "sgd", "--set", change)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not list(Path("runs").glob("*"))


def test_ps_is_refused_for_networks_before_anything_runs(lasg: Lasg) -> None:
    done = lasg("run", "digits", "-a", "lasg-ps", *MLP)
    assert done.code == 2
    assert "lasg-pse estimates" in done.err


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Spec:
    """A pretraining that takes a moment."""
    spec = task("digits").spec("sgd", setting="homogeneous", model="mlp", workers=1, iterations=20, evaluate=20)
    monkeypatch.setitem(pretrained.RECIPES, "mine", spec)
    return spec


@pytest.mark.usefixtures("recipe")
def test_pretrain_keeps_the_weights_and_runs_start_from_them(lasg: Lasg) -> None:
    done = lasg("pretrain", "mine")
    assert done.code == 0
    assert "Start from them with --set weights=mine" in done.out
    assert (weights.made_folder() / "mine.safetensors").is_file()
    assert lasg("run", "digits", "-a", "sgd", *MLP, "--set", "weights=mine").code == 0
    (weights.made_folder() / "mine.safetensors").unlink()


@pytest.mark.usefixtures("recipe")
def test_a_run_makes_the_weights_it_lacks(lasg: Lasg) -> None:
    assert not pretrained.missing("other", None)
    assert pretrained.missing("mine", None)
    assert lasg("run", "digits", "-a", "sgd", *MLP, "--set", "weights=mine").code == 0
    assert not pretrained.missing("mine", None)
    (weights.made_folder() / "mine.safetensors").unlink()


def test_an_unknown_pretraining_is_refused(lasg: Lasg) -> None:
    done = lasg("pretrain", "nothing")
    assert done.code == 2
    assert "lasg trains no weights 'nothing'" in done.err


def status(**more: Any) -> Status:
    return Status(small("lasg-wk2"), 0.5, Ledger(rounds=10, iterations=10, uploads=20), 0.5, 12.0, (), **more)


def test_progress_shows_training_and_evaluation_apart() -> None:
    shown = describe(status(evaluation_seconds=3.0, evaluating=True), Meter(1))
    assert "trained 12.0 s, evaluated 3.00 s, evaluating now" in shown
    assert "evaluated" not in describe(status(evaluation_seconds=0.01), Meter(1))


def test_broken_gradients_are_told_with_worker_and_round_and_not_endlessly() -> None:
    assert complaints(status()) == []
    (line,) = complaints(status(broken=((7, 3),)))
    assert "worker 3's gradient was NaN or infinite in round 7: it counts as silent" in line
    many = complaints(status(broken=tuple((k, 3) for k in range(20))))
    assert len(many) == MOST_COMPLAINTS + 1
    assert many[-1] == f"... and {20 - MOST_COMPLAINTS} more"


# -- the paper's network -------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network's row and its savings on a task that takes a moment."""

    def spec(name: str, algorithm: str, setting: str, seed: int, **changes: Any) -> Spec:
        base = {"model": "mlp", "iterations": 20, "evaluate": 10, **changes}
        return task("digits").spec(algorithm, setting=setting, seed=seed, **base)

    monkeypatch.setattr(paper, "neural_spec", spec)
    monkeypatch.setattr(savings, "neural_spec", spec)
    monkeypatch.setattr(savings, "CAP", 30)
    settings = replace(task("digits"), name="mnist-nn", defaults={**task("digits").defaults, "model": "mlp"})
    monkeypatch.setattr(savings, "task", lambda name: settings)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("table", [1, 2, 3, 4])
def test_a_table_has_the_networks_row_on_demand(lasg: Lasg, table: int) -> None:
    done = lasg("paper", f"table{table}", "--task", "mnist-nn", "--seeds", 1, "--set", "eta=0.25", "-j", 1)
    assert done.code == 0
    assert "mnist-nn" in done.out
    name = f"table{table}-mnist-nn-eta0.25"
    assert "--task mnist-nn --set eta=0.25" in (Path("lasg-paper") / f"{name}.md").read_text()
    assert len((Path("lasg-paper") / f"{name}.csv").read_text().splitlines()) == 11


@pytest.mark.usefixtures("quick")
def test_savings_are_printed_and_written(lasg: Lasg) -> None:
    done = lasg("paper", "savings", "--seeds", 2, "-j", 1)
    assert done.code == 0
    assert "fewer uploads" in done.out
    text = (Path("lasg-paper") / "savings-mnist-nn-heterogeneous.csv").read_text()
    assert text.splitlines()[0].startswith("variant,seeds,reached,iterations,fewer_iterations")
    assert [line.split(",")[0] for line in text.splitlines()[1:]] == ["sgd", "lasg-wk2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("savings", "--task", "covtype-lr"), "savings is about mnist-nn only"),
        (("toy", "--set", "eta=1"), "--set is for tables"),
        (("savngs",), "unknown part of the paper"),
    ],
)
def test_wrong_parts_of_the_paper_are_refused(lasg: Lasg, arguments: tuple[str, ...], words: str) -> None:
    done = lasg("paper", *arguments)
    assert done.code == 2
    assert words in done.err


def run_of(folder: Path, algorithm: str, rows: list[tuple[int, int, float]], accuracy: float) -> Run:
    found = made_up(folder, small(algorithm), rows)
    found.trace["accuracy"][:] = accuracy
    found.trace["iterations"][:] = found.trace["rounds"]
    return found


def test_savings_compare_each_seed_with_sgd_of_that_seed(tmp_path: Path) -> None:
    sgd = [
        run_of(tmp_path / "a", "sgd", [(0, 0, 2.0), (500, 50, 0.5), (1000, 100, 0.3)], 0.9),
        run_of(tmp_path / "b", "sgd", [(0, 0, 2.0), (500, 50, 0.6), (1000, 100, 0.4)], 0.8),
    ]
    lazy = [
        run_of(tmp_path / "c", "lasg-wk2", [(0, 0, 2.0), (100, 10, 0.4), (250, 20, 0.3)], 0.89),
        run_of(tmp_path / "d", "lasg-wk2", [(0, 0, 2.0), (200, 10, 0.4), (250, 20, 0.2)], 0.81),
    ]
    never = [*lazy[:1], run_of(tmp_path / "e", "lasg-wk2", [(0, 0, 2.0), (200, 10, 0.5)], 0.5)]
    rows = savings.rows({"sgd": sgd, "lazy": lazy, "never": never})
    assert rows[0]["fewer_uploads"] == 1
    assert rows[1]["uploads"] == 225
    assert rows[1]["fewer_uploads"] == (1000 / 250 + 1000 / 200) / 2
    assert rows[1]["fewer_uploads_spread"] == pytest.approx(0.5**0.5)
    assert rows[1]["fewer_bits_up"] == (100 / 20 + 100 / 10) / 2
    assert rows[1]["accuracy_less_sgds"] == pytest.approx(0.0)
    assert (rows[2]["reached"], rows[2]["uploads"], rows[2]["fewer_uploads"]) == (1, None, None)
