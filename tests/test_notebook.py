"""lasg in a notebook: names that can be found, paths as strings, runs that show what they are."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lasg
from lasg.data import manage
from lasg.data.loaders import load
from lasg.errors import LasgError
from lasg.flower import new
from lasg.report import page, plots, sinks
from lasg.runs import pool, runner, spec, store
from lasg.runs.trace import EVALUATED
from tests.runs.samples import small, stop_after

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stored runs of one problem."""
    found = tmp_path_factory.mktemp("notebook") / "runs"
    for name in ("sgd", "lasg-wk2"):
        lasg.train(small(name, iterations=30, evaluate=5), folder=found / name)
    return found


# -- names ------------------------------------------------------------------------------------------------------------


def test_dir_shows_the_public_names_and_each_can_be_had() -> None:
    assert dir(lasg) == sorted(lasg.__all__)
    assert {"train", "read", "read_runs", "plot", "summarise", "training", "LazyOptimizer"} < set(dir(lasg))
    assert all(getattr(lasg, name) is not None for name in dir(lasg))


def test_the_names_are_there_before_anything_heavy_is_loaded() -> None:
    code = "import lasg, sys; print('train' in dir(lasg), 'torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]


# -- paths as strings -------------------------------------------------------------------------------------------------

Call = Callable[[str, str], Any]
CALLS: dict[str, Call] = {
    "train": lambda _, new: lasg.train(small("sgd", iterations=2), folder=f"{new}/run"),
    "problem": lambda _, new: lasg.problem(small("sgd", iterations=2), new),
    "read": lambda runs, _: lasg.read(f"{runs}/sgd"),
    "runs": lambda runs, _: lasg.read_runs(runs, f"{runs}/sgd"),
    "spec.read": lambda runs, _: spec.read(f"{runs}/sgd/spec.toml"),
    "runner.run": lambda _, new: runner.run(small("sgd", iterations=2), f"{new}/run", data_dir=new),
    "runner.resume": lambda runs, new: runner.resume(f"{runs}/sgd", data_dir=new),
    "obtain": lambda _, new: runner.obtain(small("sgd", iterations=2), new, data_dir=new),
    "pool.obtain_all": lambda _, new: pool.obtain_all([small("sgd", iterations=2)], new, data_dir=new),
    "data.load": lambda _, new: load("breast-cancer", data_dir=new),
    "data.status": lambda _, new: manage.status(new),
    "data.fetch": lambda _, new: manage.fetch("breast-cancer", data_dir=new),
    "data.check": lambda _, new: manage.check("breast-cancer", new),
    "report": lambda runs, new: page.write(f"{new}/report.html", lasg.read_runs(runs)),
    "plots.comparison": lambda runs, new: plots.comparison(lasg.read_runs(runs), f"{new}/plot.png", "two"),
    "plots.save": lambda runs, new: plots.save(lasg.plot(lasg.read_runs(runs)), f"{new}/plot.svg"),
    "csv": lambda _, new: sinks.Csv(f"{new}/log.csv").close(),
    "tensorboard": lambda _, new: sinks.TensorBoard(f"{new}/board").close(),
    "flower.new": lambda _, new_: new.create(f"{new_}/my-app"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_path_may_be_a_string(name: str, folder: Path, tmp_path: Path) -> None:
    CALLS[name](str(folder), str(tmp_path))


def test_weights_and_keys_take_strings_too(folder: Path, tmp_path: Path) -> None:
    from lasg.flower import keys
    from lasg.problems.models import read_weights

    assert set(read_weights(f"{folder}/sgd/model.safetensors")) == {"theta"}
    assert keys.create(f"{tmp_path}/keys", ["localhost"], ["0"])


# -- stored runs ------------------------------------------------------------------------------------------------------


def test_a_run_says_in_one_line_what_it_is(folder: Path) -> None:
    run = lasg.read(folder / "lasg-wk2")
    loss, uploads = run.trace["loss"][-1], run.trace["uploads"][-1]
    said = f"<Run small, lasg-wk2, seed 0: done, 30 iterations, loss {loss:.4g}, {uploads} uploads; {run.folder}>"
    assert repr(run) == said


@pytest.mark.usefixtures("eager")
def test_a_run_that_has_not_ended_or_is_damaged_says_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        lasg.train(small("sgd"), folder=tmp_path, report=stop_after(3, error=KeyboardInterrupt))
    assert repr(lasg.read(tmp_path)) == f"<Run small, sgd, seed 0: running; {tmp_path}>"
    (tmp_path / store.TRACE).write_bytes(b"PK\x03\x04 no zip")
    assert repr(lasg.read(tmp_path)) == f"<Run small, sgd, seed 0: running; {tmp_path}>"


def test_a_repr_reads_three_arrays_and_keeps_nothing(folder: Path) -> None:
    run = lasg.read(folder / "sgd")
    repr(run)
    assert "trace" not in vars(run)


def test_the_runs_of_a_folder_are_found_chosen_and_summarised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [run.spec.algorithm for run in lasg.read_runs(folder)] == ["lasg-wk2", "sgd"]
    monkeypatch.chdir(folder.parent)
    assert len(lasg.read_runs()) == 2
    assert len(lasg.read_runs(task="small", partition=small("sgd").partition)) == 2
    with pytest.raises(LasgError, match="none of the 2 runs is of that task"):
        lasg.read_runs(task="other")
    with pytest.raises(LasgError, match="nowhere does not exist"):
        lasg.read_runs("nowhere")
    rows = [row.to_dict() for row in lasg.summarise(lasg.read_runs())]
    assert [row["label"] for row in rows] == ["lasg-wk2", "sgd"]


def test_a_frame_has_the_evaluations(folder: Path) -> None:
    run = lasg.read(folder / "sgd")
    frame = run.frame()
    assert list(frame.columns) == list(EVALUATED)
    assert len(frame) == 7
    np.testing.assert_array_equal(frame["loss"], run.trace["loss"])
    assert frame["uploads"].iloc[-1] == 30 * run.spec.workers


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [("pandas", "notebook", lambda run: run.frame()), ("matplotlib", "plot", lambda run: run.plot())],
)
def test_without_the_package_the_install_line_is_said(
    package: str, extra: str, call: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LasgError, match=rf"{package} is not installed, .* pip install 'lasg\[{extra}\]'"):
        call(lasg.read(folder / "sgd"))


def test_a_plot_has_loss_against_iterations_uploads_and_bits_and_a_notebook_shows_it(folder: Path) -> None:
    for figure, curves in ((lasg.read(folder / "sgd").plot(), 1), (lasg.plot(lasg.read_runs(folder)), 2)):
        assert [axis.get_xlabel() for axis in figure.axes] == [
            "iterations (log)",
            "uploads (log)",
            "bits uploaded (log)",
        ]
        assert all(len(axis.lines) == curves for axis in figure.axes)
        assert vars(figure)["_repr_png_"]().startswith(PNG)
    assert figure.get_suptitle() == "small, sorted"


def test_runs_of_two_problems_are_not_drawn_together(folder: Path, tmp_path: Path) -> None:
    other = lasg.train(small("sgd", workers=3, iterations=2), folder=tmp_path)
    with pytest.raises(LasgError, match="2 different problems"):
        lasg.plot([other, *lasg.read_runs(folder)])


def test_a_training_measures_its_accuracy() -> None:
    training = lasg.training(lasg.task("digits").spec("sgd"))
    before = training.accuracy()
    for _ in range(50):
        training.step()
    assert (training.loss(), training.accuracy()) == training.measure()
    assert 0 <= before < 0.5 < training.accuracy() <= 1  # type: ignore[operator]


def test_a_name_instead_of_a_spec_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match=r"lasg.task\('digits'\).spec"):
        lasg.train("digits", folder=tmp_path / "run")  # type: ignore[arg-type]


def test_a_plot_takes_the_folder_of_runs(tmp_path: Path) -> None:
    lasg.train(lasg.task("digits").spec("sgd", iterations=20), folder=tmp_path / "run")
    assert len(lasg.plot(str(tmp_path)).axes) == 3
