"""The command line that a report shows for a run gives exactly that run."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from lasg.cli import training as cli
from lasg.cli.main import main
from lasg.core.algorithms import ALGORITHMS
from lasg.report.commands import command
from lasg.runs import store
from lasg.runs.runner import run
from lasg.runs.spec import Spec
from lasg.runs.tasks import SETTINGS, TASKS, task
from tests.runs.samples import small

COMPOSED = ("wk2+qsgd8:512+H4", "always+H3", "pse+dense")


def line(spec: Spec) -> str:
    found = command(spec)
    assert found is not None
    assert "\n" not in found
    return found


def parsed(text: str) -> Spec:
    """Return the spec that the real command line would run."""
    words = shlex.split(text)
    assert words[:2] == ["lasg", "run"]
    found: list[Spec] = []

    def catch(specs: list[Spec], *rest: Any, **more: Any) -> None:
        found.extend(specs)
        raise typer.Exit(0)

    with mock.patch.object(cli, "execute", catch):
        code = main(words[1:])
    assert (code, len(found)) == (0, 1), f"refused: {text}"
    return found[0]


def check(spec: Spec) -> None:
    again = parsed(line(spec))
    assert again == spec, line(spec)
    assert again.to_toml() == spec.to_toml()
    assert again.digest == spec.digest, "its run would lie in another folder"


# -- tasks, algorithms, settings -----------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", TASKS)
def test_a_task_runs_again_with_every_algorithm_in_both_settings(name: str, setting: str) -> None:
    for seed, algorithm in enumerate((*ALGORITHMS, *COMPOSED)):
        check(task(name).spec(algorithm, setting=setting, seed=seed))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_plain_run_has_a_plain_command(setting: str) -> None:
    spec = task("digits").spec("lasg-wk2", setting=setting, seed=3)
    assert line(spec) == f"lasg run digits -a lasg-wk2 --seed 3 --setting {setting}"


def test_a_partition_without_the_tasks_own_options_is_set_in_the_other_setting() -> None:
    check(task("mnist-nn").spec("sgd", setting="homogeneous", partition="sizes"))


def test_only_what_differs_from_the_task_is_in_the_command() -> None:
    spec = task("digits").spec("lasg-wk2", eta=0.25, D=50)
    assert line(spec) == "lasg run digits -a lasg-wk2 --seed 0 --setting heterogeneous --set eta=0.25"


@pytest.mark.parametrize("name", ["small", "mine.toml", "", "digit"])
def test_a_task_that_nobody_knows_has_no_command(name: str) -> None:
    assert command(small("sgd", task=name)) is None


# -- changes -------------------------------------------------------------------------------------------------

CHANGES: list[dict[str, Any]] = [
    {"eta": 0.05},
    {"eta": 1},
    {"eta": 1e-7},
    {"c": 0},
    {"c": 0.4},
    {"c": float("inf")},
    {"D": 7},
    {"window": 3},
    {"lam": 0.0},
    {"batch": 1},
    {"H": 77},
    {"bits": 2},
    {"bucket": 512},
    {"start": "zero"},
    {"smoothness": "tight"},
    {"dtype": "float64"},
    {"watch": [0, 9, 4]},
    {"watch": []},
    {"workers": 2},
    {"workers": 123},
    {"cut": 64},
    {"evaluate": 1},
    {"evaluate": 250},
    {"evaluate": "geometric"},
    {"iterations": 1},
    {"iterations": 10**9},
    {"partition": "dirichlet", "alpha": 0.1},
    {"partition": "dirichlet", "alpha": 100},
    {"partition": "classes", "classes": 2},
    {"partition": "sizes", "sizes": [10, 20, 30], "workers": 3},
    {"partition": "sizes", "sizes": list(range(100, 140)), "workers": 40},
    {"schedule": "decreasing", "schedule_options": {"mu": 0.1, "K0": 10}},
    {"optimizer": "Adam"},
    {"optimizer": "Adam", "optimizer_options": {"betas": [0.8, 0.99], "amsgrad": True, "eps": 1e-10}},
    {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9, "nesterov": True}},
    {"optimizer": "SGD", "schedule": "StepLR", "schedule_options": {"step_size": 30, "gamma": 0.5}},
    {"optimizer": "SGD", "schedule": "MultiStepLR", "schedule_options": {"milestones": [10, 20]}},
    {"optimizer": "SGD", "schedule": "LinearLR", "schedule_options": {"start_factor": 1 / 3, "total_iters": 4}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("name", ["digits", "covtype-lr"])
def test_a_changed_setting_is_in_the_command(name: str, change: dict[str, Any]) -> None:
    for setting in SETTINGS:
        check(task(name).spec("lasg-wk2", setting=setting, seed=1, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "SGD", "schedule": "CyclicLR", "schedule_options": {"base_lr": 0.1, "mode": "triangular2"}},
        {"optimizer": "SGD", "schedule": "OneCycleLR", "schedule_options": {"anneal_strategy": "cos"}},
        {"optimizer": "SGD", "schedule_options": {"x": "true", "y": "12", "z": "1979-05-27"}},
        {"optimizer": "SGD", "schedule_options": {"x": "two  spaces", "y": 'it\'s a "quote" \\ $HOME `ls` !'}},
    ],
    ids=str,
)
def test_options_that_are_words_are_in_the_command(change: dict[str, Any]) -> None:
    check(task("digits").spec("sgd", **change))


BUDGETS: list[dict[str, float]] = [
    {"uploads": 1000},
    {"uploads": 1000.0},
    {"uploads": 1e22},
    {"bits": 10**12},
    {"gradients": 55},
    {"loss": 0.2},
    {"loss": 1},
    {"loss": 1e-9},
    {"loss": 0.2, "uploads": 10, "bits": 2.5e9, "gradients": 7},
    {"gradients": 7, "bits": 1, "uploads": 3, "loss": 0.1},
]


@pytest.mark.parametrize("until", BUDGETS, ids=str)
@pytest.mark.parametrize("more", [{}, {"iterations": 17}, {"iterations": 200_000}], ids=str)
def test_budgets_of_every_kind_are_in_the_command(until: dict[str, float], more: dict[str, Any]) -> None:
    check(task("mnist-lr").spec("laqsg-ps", until=until, **more))


positive = st.floats(1e-300, 1e300)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
plain = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.lists(positive, max_size=4)


@st.composite
def changed_specs(draw: st.DrawFn) -> Spec:
    workers = draw(st.integers(1, 40))
    changes: dict[str, st.SearchStrategy[Any]] = {
        "workers": st.just(workers),
        "partition": st.sampled_from(["homogeneous", "sorted", "dirichlet", "classes", "sizes"]),
        "alpha": positive,
        "classes": st.integers(1, 9),
        "sizes": st.lists(st.integers(1, 99), max_size=5),
        "cut": st.integers(1, 2000),
        "batch": st.floats(0, 1, exclude_min=True),
        "lam": st.floats(0, 1e10),
        "eta": positive,
        "schedule": st.sampled_from(["constant", "decreasing", "CosineAnnealingLR"]),
        "schedule_options": st.dictionaries(keys, plain, max_size=3),
        "optimizer": st.sampled_from(["sgd", "SGD", "Adam"]),
        "optimizer_options": st.dictionaries(keys, plain, max_size=3),
        "D": st.integers(1, 10**6),
        "c": st.floats(0, allow_nan=False),
        "window": st.integers(1, 100),
        "H": st.integers(1, 100),
        "bits": st.integers(2, 16),
        "bucket": st.integers(1, 5000),
        "iterations": st.integers(1, 10**9),
        "until": st.dictionaries(st.sampled_from(["uploads", "bits", "gradients", "loss"]), positive),
        "evaluate": st.integers(1, 10**6) | st.just("geometric"),
        "watch": st.lists(st.integers(0, workers - 1), unique=True, max_size=5),
    }
    chosen = draw(st.sets(st.sampled_from(list(changes)))) | {"workers"}
    return task(draw(st.sampled_from(list(TASKS)))).spec(
        draw(st.sampled_from([*ALGORITHMS, *COMPOSED])),
        setting=draw(st.sampled_from(list(SETTINGS))),
        seed=draw(st.integers(0, 2**62)),
        **{key: draw(strategy) for key, strategy in changes.items() if key in chosen},
    )


@settings(deadline=None)  # the command line is built again for each
@given(changed_specs())
def test_any_changes_together_are_in_the_command(spec: Spec) -> None:
    check(spec)


# -- files ---------------------------------------------------------------------------------------------------

NAMES = [
    "plain.txt",
    "with space.txt",
    "it's.libsvm",
    'a "quoted" one',
    "dollar $HOME `ls` \\ back",
    "sub/folder/x.bz2",
    "Größe.txt",
    "[brackets]{braces}=,;#.txt",
    "two  spaces.txt",
    "narrow\u00a0space.txt",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_runs_again_from_the_same_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (name, str(tmp_path / name)):
        check(task(f"libsvm:{path}").spec("lasg-wk2", eta=0.3))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_runs_again_where_the_report_was_written_in_another_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    spec = task(f"libsvm:{name}").spec("lasg-wk2")
    monkeypatch.chdir(tmp_path)
    check(spec)


def test_a_command_means_the_same_file_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = task("libsvm:mine.txt").spec("lasg-wk2")
    text = line(spec)
    monkeypatch.chdir(os.sep)
    assert parsed(text).data == spec.data, "a command copied from a report is run anywhere"


def test_a_file_is_data_whatever_its_name_ends_in(tmp_path: Path) -> None:
    check(task(f"libsvm:{tmp_path}/data.toml").spec("sgd"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_a_command_as_python_does(name: str) -> None:
    options = {"T_max": 5, "eta_min": 0.0}
    text = line(task(f"libsvm:/x/{name}").spec("sgd", schedule="CosineAnnealingLR", schedule_options=options))
    script = f"set -- {text}; printf '%s\\0' \"$@\""
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True, timeout=10)
    assert done.stdout.split("\0")[:-1] == shlex.split(text)


# -- end to end ----------------------------------------------------------------------------------------------


def test_the_command_of_a_stored_run_gives_its_numbers(tmp_path: Path) -> None:
    spec = task("breast-cancer").spec("laqsg-pse", seed=4, eta=0.5, workers=5, watch=[4, 0], until={"uploads": 40})
    first = run(spec, tmp_path / "first")
    words = shlex.split(line(store.read(tmp_path / "first").spec))
    assert main([*words[1:], "--out", str(tmp_path / "again")]) == 0
    (folder,) = (tmp_path / "again").iterdir()
    second = store.read(folder)
    assert second.spec == first.spec
    assert all(np.array_equal(first.trace[name], second.trace[name], equal_nan=True) for name in first.trace)
