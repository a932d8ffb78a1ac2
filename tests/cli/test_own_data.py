"""A user's own data on the command line: what is odd about them is told, and `--scale` is part of the run."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from lasg.report.commands import command
from lasg.runs import store
from lasg.runs.spec import read

from .conftest import Lasg, complaints, said

UNTIL = ("--until", "iterations=60", "--out", "runs")


@pytest.fixture(autouse=True)
def patients(elsewhere: None) -> None:
    """Write patients.csv: features of very different sizes, and words as classes."""
    rng = np.random.default_rng(0)
    sick = np.arange(200) % 2
    rows = np.column_stack([1000 + 300 * (rng.normal(size=200) + sick), 0.01 * (rng.normal(size=200) - sick)])
    with Path("patients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["area", "depth", "diagnosis"])
        writer.writerows([f"{a:.6g}", f"{b:.6g}", ("well", "ill")[s]] for (a, b), s in zip(rows, sick, strict=True))


RUN = ("run", "csv:patients.csv", "-a", "lasg-wk2", *UNTIL, "--set", "label_column=diagnosis")


def test_unscaled_features_are_told_before_the_run_and_a_loss_that_rose_after_it(lasg: Lasg) -> None:
    done = lasg(*RUN)
    assert done.code == 0
    (line,) = complaints(done)
    assert line.startswith("lasg: note: ")
    assert "1 of 2 features are not scaled (column 'area' runs from" in line
    assert "--scale" in line
    assert "lasg-wk2: the loss ended above where it began (0.6931, then " in done.out
    assert "or add --scale." in done.out


def test_scale_trains_says_nothing_and_is_part_of_the_stored_run(lasg: Lasg) -> None:
    done = lasg(*RUN, "--scale", "--json")
    assert (done.code, done.err) == (0, "")
    values = json.loads(done.out)
    assert values["loss"] < 0.55
    spec = store.read(Path(values["folder"])).spec
    assert (spec.scale, spec.label_column) == (True, "diagnosis")
    assert read(Path(values["folder"]) / "spec.toml") == spec
    assert "--set scale=true" in str(command(spec))
    again = json.loads(lasg("run", Path(values["folder"]) / "spec.toml", "--out", "again", "--json").out)
    assert again["loss"] == values["loss"]


def test_scaled_and_unscaled_runs_are_two_and_cannot_be_compared(lasg: Lasg) -> None:
    assert lasg(*RUN).code == lasg(*RUN, "--scale").code == 0
    assert len(list(Path("runs").iterdir())) == 2
    assert "2 different problems (scale: " in said(lasg("report", "runs"))


def test_compare_and_tune_take_scale_and_csv(lasg: Lasg) -> None:
    own = ("csv:patients.csv", *UNTIL, "--set", "label_column=diagnosis", "--scale", "--seeds", 1, "-j", 1, "--json")
    for call in (("compare", *own, "-a", "sgd,lasg-wk2"), ("tune", *own, "-a", "sgd", "--grid", "eta=0.1,0.5")):
        done = lasg(*call)
        assert (done.code, done.err) == (0, "")
        assert all(row["loss"] < 0.69 for row in json.loads(done.out))


def test_integers_that_look_like_a_quantity_are_told(lasg: Lasg) -> None:
    Path("prices.svm").write_text("".join(f"{i % 101} 1:0.{i}\n" for i in range(202)))
    done = lasg("run", "libsvm:prices.svm", "-a", "sgd", *UNTIL)
    assert done.code == 0
    assert "101 classes in 202 samples look like a quantity" in "".join(complaints(done))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["csv:patients.csv"], ["target or label or y", "label_column=NAME", "area, depth, diagnosis"]),
        (["csv:patients.csv", "--set", "label_column=depth"], ["column 'diagnosis' holds 'well', not a number"]),
        (["csv:absent.csv"], ["must name a CSV file", "no file"]),
        (["digits", "--scale"], ["scale is for libsvm:PATH and csv:PATH", "leave it out"]),
        (["digits", "--set", "label_column=y"], ["label_column", "csv:PATH"]),
        (["csv:patients.csv", "--scale", "--set", "scale=false"], ["contradict"]),
        (["csv:patients.csv", "--set", "scale=much"], ["scale must be true or false"]),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:],
)
def test_what_cannot_be_is_one_line(lasg: Lasg, arguments: list[str], words: list[str]) -> None:
    done = lasg("run", *arguments, "-a", "sgd", *UNTIL)
    assert done.code == 2
    assert not Path("runs").exists()
    line = said(done)
    for word in words:
        assert word in line
