"""`lasg advise` measures, advises and writes a spec; runs say in one line where they stand, and go on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lasg.cli import theory_note
from lasg.problems.regression import Regression
from lasg.runs import runner, store
from lasg.runs import spec as specs
from lasg.runs.tasks import task

from .conftest import Done, Lasg, complaints, said

NOTICE = "Outside the paper's theorems"
FEW = ("--until", "iterations=20")


def fine(done: Done) -> str:
    assert done.code == 0, done.err
    assert not complaints(done)
    return done.out


def notices(text: str) -> list[str]:
    return [line for line in text.splitlines() if NOTICE in line]


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_advise_prints_numbers_three_columns_and_what_each_gives_up(lasg: Lasg, name: str) -> None:
    text = fine(lasg("advise", name))
    for word in ("smooth loss", "smooth loss on each worker", "theory-safe", "the task's (the paper's)", "practical"):
        assert word in text
    assert "times smaller than the task's: safe, and slow" in text
    assert text.splitlines()[-1] == "Spec: advice.toml (practical). Run it: lasg run advice.toml"


@pytest.mark.parametrize("column", ["safe", "paper", "practical"])
@pytest.mark.parametrize("algorithm", ["sgd", "lasg-wk2", "laqsg-wk1", "lasg-pse", "wk2+qsgd8:64"])
def test_every_column_is_a_spec_that_runs(lasg: Lasg, column: str, algorithm: str) -> None:
    fine(lasg("advise", "breast-cancer", "-a", algorithm, "--column", column, "--out", "s.toml"))
    written = specs.read(Path("s.toml"))
    assert written.algorithm == algorithm
    fine(lasg("run", "s.toml", *FEW, "--out", "runs"))
    (folder,) = Path("runs").iterdir()
    theory = store.read(folder).meta["theory"]
    assert theory["inside"] == (column == "safe" and algorithm != "lasg-pse")


def test_the_papers_column_is_the_tasks_own_run(lasg: Lasg) -> None:
    fine(lasg("advise", "digits", "-a", "lasg-ps", "--set", "D=20", "--column", "paper", "--out", "s.toml"))
    assert specs.read(Path("s.toml")) == task("digits").spec("lasg-ps", D=20)


def test_json_holds_the_same(lasg: Lasg) -> None:
    found = json.loads(fine(lasg("advise", "breast-cancer", "--json", "--out", "s.toml")))
    assert [one["column"] for one in found["columns"]] == ["safe", "paper", "practical"]
    assert found["measures"]["how"]["L"] == "exact"
    assert len(found["measures"]["L_m"]) == 10
    assert Path("s.toml").is_file()


def test_a_network_is_estimated_at_its_start(lasg: Lasg) -> None:
    text = fine(lasg("advise", "digits", "--set", "model=mlp", "--set", "lam=0"))
    assert "estimated at theta^0 only" in text
    assert "nonconvex theorem" in text
    fine(lasg("run", "advice.toml", *FEW))


def test_wrong_input_is_told_in_one_line(lasg: Lasg) -> None:
    assert "column" in said(lasg("advise", "digits", "--column", "best"))
    assert "local steps" in said(lasg("advise", "digits", "-a", "local-sgd"))
    assert "plain SGD" in said(lasg("advise", "digits", "--set", "optimizer=Adam"))
    assert "mu and K0" in said(lasg("advise", "digits", "--set", "schedule=decreasing"))
    assert not Path("advice.toml").exists()


def test_the_practical_column_needs_fewer_rounds_and_no_more_uploads_on_digits(lasg: Lasg) -> None:
    """The promise of docs/choosing.md, on the embedded data."""
    fine(lasg("advise", "digits", "--out", "s.toml"))
    spent = {}
    for name, spec in (("practical", specs.read(Path("s.toml"))), ("task", task("digits").spec("lasg-wk2"))):
        trace = runner.run(specs.with_budget(spec, "loss", 0.2), Path(name)).trace
        spent[name] = int(trace["rounds"][-1]), int(trace["uploads"][-1])
    assert spent["practical"][0] < 0.7 * spent["task"][0]
    assert spent["practical"][1] <= spent["task"][1]


# -- the notice ------------------------------------------------------------------------------------------------


def test_a_run_outside_says_so_once_and_keeps_it(lasg: Lasg) -> None:
    text = fine(lasg("run", "breast-cancer", "-a", "lasg-wk2", *FEW))
    (line,) = notices(text)
    assert "what the nonconvex theorem allows" in line
    assert "lasg advise breast-cancer" in line
    (folder,) = Path("runs").iterdir()
    theory = store.read(folder).meta["theory"]
    assert theory["theorem"] == "thm:nonconvex"
    assert theory["eta"] == 2.0
    assert theory["eta"] > theory["largest_eta"]


def test_a_comparison_says_it_once_for_all_algorithms_and_seeds(lasg: Lasg) -> None:
    command = ("compare", "breast-cancer", *FEW, "--seeds", 2, "-j", 1)
    (line,) = notices(fine(lasg(*command)))
    assert "all 12 algorithms" in line
    assert len(notices(fine(lasg(*command)))) == 1, "and again where the runs are stored"
    json.loads(fine(lasg(*command, "--json")))


def test_a_run_inside_says_nothing(lasg: Lasg) -> None:
    fine(lasg("advise", "breast-cancer", "--column", "safe"))
    assert not notices(fine(lasg("run", "advice.toml", *FEW)))


def test_networks_have_no_standing(lasg: Lasg) -> None:
    assert not notices(fine(lasg("run", "digits", "-a", "sgd", "--set", "model=mlp", *FEW)))
    (folder,) = Path("runs").iterdir()
    assert "theory" not in store.read(folder).meta


@pytest.mark.parametrize(
    "changes",
    [{"eta": 1e-200}, {"eta": 1e200}, {"c": float("inf")}, {"c": 0.0}, {"lam": 0.0}, {"optimizer": "Adam"}],
    ids=str,
)
def test_no_numbers_stop_a_run_or_its_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    spec = task("breast-cancer").spec("lasg-wk2", iterations=3, **changes)
    found = runner.run(spec, tmp_path / "run")
    theory_note.annotate([found])
    assert len(theory_note.lines([found])) <= 1
    json.loads((tmp_path / "run" / store.META).read_text(), parse_constant=pytest.fail)


def test_data_without_features_has_no_theory_note() -> None:
    problem = Regression(
        np.zeros((4, 2)), np.array([0, 1, 0, 1]), [np.arange(4)], classes=2, batch=1.0, seed=0, lam=0.0
    )
    assert theory_note.assess(task("digits").spec("sgd", workers=1), problem) is None


def test_a_stored_run_without_the_note_gets_it(lasg: Lasg) -> None:
    fine(lasg("run", "breast-cancer", "-a", "lasg-wk2", *FEW))
    (folder,) = Path("runs").iterdir()
    meta = store.read(folder).meta
    del meta["theory"]
    store.write_meta(folder, meta)
    assert len(notices(fine(lasg("run", "breast-cancer", "-a", "lasg-wk2", *FEW)))) == 1
    assert store.read(folder).meta["theory"]["theorem"] == "thm:nonconvex"


def test_advice_for_a_network_names_the_methods_that_save_most(lasg: Lasg) -> None:
    assert "lasg run digits -a lasg-local" in fine(lasg("advise", "digits", "--set", "model=mlp"))
    assert "lasg-local" not in fine(lasg("advise", "digits"))
