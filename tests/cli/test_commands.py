"""Every command does what its help says, end to end."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lasg as package
from lasg.cli import training as commands
from lasg.core.algorithms import ALGORITHMS, KNOWN
from lasg.core.ledger import COUNTS
from lasg.data.sources import DATASETS
from lasg.report.paper_tables import COLUMNS
from lasg.runs import store
from lasg.runs.tasks import TASKS

from .conftest import Done, Lasg, complaints, said, spawn

PNG = b"\x89PNG\r\n\x1a\n"
QUICK = ("breast-cancer", "--until", "iterations=30", "--out", "runs")
EVERY_COMMAND = [
    [],
    ["demo"],
    ["run"],
    ["resume"],
    ["compare"],
    ["tune"],
    ["advise"],
    ["paper"],
    ["list"],
    ["list", "tasks"],
    ["list", "algorithms"],
    ["list", "data"],
    ["data"],
    ["data", "list"],
    ["data", "fetch"],
    ["data", "check"],
]


def ok(done: Done) -> Any:
    """Return the JSON that a command printed, after looking that all went well."""
    assert done.code == 0, done.err
    assert not complaints(done)
    return json.loads(done.out)


def fine(done: Done) -> str:
    """Return what a command printed, after looking that all went well."""
    assert done.code == 0, done.err
    assert not complaints(done)
    return done.out


def folders() -> list[Path]:
    return sorted(Path("runs").iterdir())


# -- what there is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_says_how_a_command_is_used(lasg: Lasg, command: list[str], flag: str) -> None:
    text = fine(lasg(*command, flag))
    assert "Usage:" in text
    assert len(text.splitlines()) > 5


def test_the_help_of_lasg_names_every_command(lasg: Lasg) -> None:
    text = fine(lasg("--help"))
    assert all(command[0] in text for command in EVERY_COMMAND if command)


def test_version_is_the_packages(lasg: Lasg) -> None:
    assert fine(lasg("--version")) == f"lasg {package.__version__}\n"


def test_list_tasks_shows_every_default(lasg: Lasg) -> None:
    text = fine(lasg("list", "tasks"))
    lines = {name: next(line for line in text.splitlines() if line.startswith(name)) for name in TASKS}
    assert lines["covtype-lr"].split()[1:8] == ["20", "100", "0.1", "0.001", "1e-05", "20", "4"]
    assert all(word in text for word in ("workers", "D", "eta", "batch", "H", "bits", "c=0.1", "window=10", "start="))


def test_list_tasks_as_json_has_the_specs_of_all_tasks(lasg: Lasg) -> None:
    rows = {row["task"]: row for row in ok(lasg("list", "tasks", "--json"))}
    assert list(rows) == list(TASKS)
    assert rows["mnist-lr"]["eta"] == 0.01


def test_list_algorithms_shows_all_with_their_references(lasg: Lasg) -> None:
    text = fine(lasg("list", "algorithms"))
    assert all(name in text for name in KNOWN)
    rows = ok(lasg("list", "algorithms", "--json"))
    assert [row["algorithm"] for row in rows] == list(KNOWN)
    assert set(rows[0]) == {"algorithm", "rule", "codec", "local_steps", "summary", "reference"}
    assert all(row["summary"] and row["reference"] for row in rows)


@pytest.mark.parametrize("command", [("list", "data"), ("data", "list")])
def test_the_data_sets_are_listed(lasg: Lasg, command: tuple[str, str]) -> None:
    text = fine(lasg(*command))
    assert all(name in text for name in DATASETS)
    rows = ok(lasg(*command, "--json"))
    assert {row["dataset"] for row in rows} == set(DATASETS)
    assert {row["where"] for row in rows if row["dataset"] == "digits"} == {"in scikit-learn"}


def test_real_data_are_found_and_checked(lasg: Lasg, real_data: Path) -> None:
    rows = ok(lasg("data", "list", "--data-dir", real_data, "--json"))
    assert str(real_data / "covtype.data.gz") in {row["path"] for row in rows}
    rows = ok(lasg("data", "check", "ijcnn1", "--data-dir", real_data, "--json"))
    assert [row["state"] for row in rows][:2] == ["ok", "ok"]
    assert "ok" in fine(lasg("data", "check", "digits"))


def test_check_of_a_damaged_file_exits_1_and_says_how_to_mend_it(lasg: Lasg) -> None:
    Path("ijcnn1.t.bz2").write_bytes(b"junk")
    done = lasg("data", "check", "ijcnn1.t", "--data-dir", ".")
    assert done.code == 1
    assert "damaged" in done.out
    assert "replace or delete this file" in done.out


# -- run -----------------------------------------------------------------------------------------------------


def test_run_stores_a_run_and_says_where(lasg: Lasg) -> None:
    text = fine(lasg("run", *QUICK, "-a", "lasg-wk2"))
    (folder,) = folders()
    assert f"Run: {folder}" in text
    assert "lasg-wk2 on breast-cancer, seed 0: done" in text
    run = store.read(folder)
    assert (run.status, run.spec.algorithm, run.spec.task) == ("done", "lasg-wk2", "breast-cancer")
    assert f"{run.trace['loss'][-1]:.6f}" in text
    assert f"{run.trace['bits_up'][-1]:,}" in text


def test_run_as_json_is_the_last_evaluation(lasg: Lasg) -> None:
    values = ok(lasg("run", *QUICK, "-a", "lasg-wk2", "--json"))
    run = store.read(Path(values["folder"]))
    assert values["status"] == "done"
    assert all(values[name] == run.trace[name][-1] for name in (*COUNTS, "loss", "accuracy"))
    assert values["seconds"] == run.meta["seconds"]


def test_run_takes_changes_setting_and_seed(lasg: Lasg) -> None:
    changes = ("--set", "eta=0.05", "--set", "optimizer=Adam", "--set", "optimizer_options={betas=[0.8, 0.9]}")
    values = ok(lasg("run", *QUICK, "-a", "sgd", "--setting", "homogeneous", "--seed", 3, *changes, "--json"))
    spec = store.read(Path(values["folder"])).spec
    assert (spec.eta, spec.partition, spec.seed, spec.optimizer) == (0.05, "homogeneous", 3, "Adam")
    assert spec.optimizer_options == {"betas": [0.8, 0.9]}


def test_run_takes_a_composed_algorithm(lasg: Lasg) -> None:
    values = ok(lasg("run", *QUICK, "-a", "wk2+qsgd8:16+H3", "--json"))
    assert (values["rounds"], values["iterations"]) == (10, 30)


SPEC = 'task = "mine"\nalgorithm = "lasg-ps"\ndata = "breast-cancer"\nworkers = 4\niterations = 20\nseed = 2\n'


def test_run_takes_a_spec_file(lasg: Lasg) -> None:
    Path("spec.toml").write_text(SPEC)
    spec = store.read(Path(ok(lasg("run", "spec.toml", "--json"))["folder"])).spec
    assert (spec.task, spec.algorithm, spec.workers, spec.seed) == ("mine", "lasg-ps", 4, 2)


def test_what_the_command_line_says_goes_before_the_spec_file(lasg: Lasg) -> None:
    Path("spec.toml").write_text(SPEC)
    given = ("-a", "sgd", "--seed", 5, "--set", "eta=0.3", "--until", "uploads=9")
    spec = store.read(Path(ok(lasg("run", "spec.toml", *given, "--json"))["folder"])).spec
    assert (spec.algorithm, spec.seed, spec.eta, dict(spec.until)) == ("sgd", 5, 0.3, {"uploads": 9})


def test_a_setting_for_a_spec_file_is_not_ignored(lasg: Lasg) -> None:
    Path("spec.toml").write_text(SPEC)
    done = lasg("run", "spec.toml", "--setting", "homogeneous", "--json")
    assert done.code == 2 or store.read(Path(json.loads(done.out)["folder"])).spec.partition == "homogeneous"


def test_the_stored_spec_of_a_run_runs_it_again(lasg: Lasg) -> None:
    first = Path(ok(lasg("run", *QUICK, "-a", "laqsg-pse", "--json"))["folder"])
    second = Path(ok(lasg("run", first / "spec.toml", "--out", "again", "--json"))["folder"])
    one, two = store.read(first), store.read(second)
    assert one.spec == two.spec
    assert all(np.array_equal(one.trace[name], two.trace[name], equal_nan=True) for name in one.trace)


@pytest.mark.parametrize(
    ("until", "column", "least", "most"),
    [
        ("uploads=35", "uploads", 35, 40),
        ("bits=50000", "bits_up", 50_000, 59_600),
        ("gradients=55", "gradients", 55, 60),
        ("iterations=7", "iterations", 7, 7),
        ("loss=0.6", "loss", 0.5, 0.6),
    ],
)
def test_a_run_ends_on_every_kind_of_budget(lasg: Lasg, until: str, column: str, least: float, most: float) -> None:
    values = ok(lasg("run", "breast-cancer", "-a", "sgd", "--set", "eta=0.1", "--until", until, "--json"))
    assert least <= values[column] <= most


def test_a_run_that_is_stored_is_read_and_fresh_runs_it_again(lasg: Lasg) -> None:
    seconds = [ok(lasg("run", *QUICK, "-a", "sgd", "--json", *more))["seconds"] for more in ((), (), ("--fresh",))]
    assert seconds[0] == seconds[1]
    assert len(folders()) == 1


def test_a_diverged_run_exits_1_with_one_line(lasg: Lasg) -> None:
    done = lasg("run", *QUICK, "-a", "sgd", "--set", "eta=1e30")
    assert done.code == 1
    assert "smaller eta" in said(done)
    assert store.read(folders()[0]).status == "diverged"


def test_run_on_a_libsvm_file(lasg: Lasg) -> None:
    lines = [f"{'+1' if i % 2 else '-1'} 1:{i % 7 / 7:.3f} 2:{i % 2}" for i in range(60)]
    Path("my data.libsvm").write_text("\n".join(lines) + "\n")
    values = ok(lasg("run", "libsvm:my data.libsvm", "-a", "lasg-wk2", "--until", "iterations=30", "--json"))
    assert values["loss"] < 0.69
    assert values["accuracy"] is None


def test_a_folder_with_brackets_in_its_name_is_printed_as_it_is(lasg: Lasg) -> None:
    assert "Run: a[/b]/" in fine(lasg("run", "breast-cancer", "-a", "sgd", "--until", "iterations=3", "--out", "a[/b]"))


# -- resume --------------------------------------------------------------------------------------------------


def test_resume_of_a_finished_run_prints_it_again(lasg: Lasg) -> None:
    first = lasg("run", *QUICK, "-a", "sgd", "--json")
    assert ok(lasg("resume", folders()[0], "--json")) == ok(first)


def test_resume_continues_a_run_that_was_stopped(lasg: Lasg) -> None:
    first = ok(lasg("run", *QUICK, "-a", "lasg-wk1", "--json"))
    folder = folders()[0]
    store.write_meta(folder, {**store.read(folder).meta, "status": "running"})
    for lost in ("trace.npz", "checkpoint.safetensors"):
        (folder / lost).unlink()
    again = ok(lasg("resume", folder, "--json"))
    assert {**again, "seconds": 0} == {**first, "seconds": 0}
    assert "lasg-wk1 on breast-cancer, seed 0: done" in fine(lasg("resume", folder))


# -- compare -------------------------------------------------------------------------------------------------


def test_compare_prints_a_row_an_algorithm(lasg: Lasg) -> None:
    text = fine(lasg("compare", *QUICK, "-a", "sgd,lasg-wk2,qsgd", "--seeds", 2, "-j", 1))
    assert len(folders()) == 6
    assert "until iterations=30" in text
    for name in ("sgd", "lasg-wk2", "qsgd"):
        assert any(line.startswith(name) for line in text.splitlines())
    assert "1.0x" in text


def test_compare_as_json_has_means_spreads_and_savings(lasg: Lasg) -> None:
    call = ("compare", *QUICK, "-a", "sgd,qsgd", "--seeds", 2, "--first-seed", 3, "-j", 1, "--json")
    sgd, qsgd = ok(lasg(*call))
    assert (sgd["algorithm"], sgd["seeds"], sgd["uploads"], sgd["fewer_bits"]) == ("sgd", 2, 300, 1)
    assert sgd["savings_loss"] == qsgd["savings_loss"] > max(sgd["loss"], qsgd["loss"]) - 1e-9
    assert qsgd["fewer_bits"] == sgd["bits_up_to_savings_loss"] / qsgd["bits_up_to_savings_loss"]
    assert qsgd["fewer_bits"] == pytest.approx(32 * 30 / (4 * 30 + 32) * qsgd["fewer_uploads"])
    assert sorted({store.read(folder).spec.seed for folder in folders()}) == [3, 4]


def test_compare_to_a_loss_says_what_was_not_reached(lasg: Lasg) -> None:
    call = ("compare", *QUICK, "-a", "sgd,lasg-wk2", "--seeds", 1, "-j", 1, "--until", "loss=0.01")
    text = fine(lasg(*call))
    assert text.count("not reached") == 2
    assert "to reach loss 0.01" in text
    assert [row["reached"] for row in ok(lasg(*call, "--json"))] == [0, 0]


def test_compare_draws(lasg: Lasg) -> None:
    text = fine(lasg("compare", *QUICK, "-a", "sgd,lag-wk", "--seeds", 1, "-j", 1, "--plot", "my.png"))
    assert Path("my.png").read_bytes().startswith(PNG)
    assert "Plot: my.png" in text


def test_compare_of_runs_that_all_diverged_shows_it_and_exits_1_with_a_line(lasg: Lasg) -> None:
    call = ("compare", *QUICK, "-a", "sgd,qsgd", "--seeds", 1, "-j", 1, "--set", "eta=1e30")
    done = lasg(*call)
    assert done.code == 1
    assert "every run diverged: take a smaller step" in said(done)
    assert done.out.count("diverged (1 of 1 seeds)") == 2
    done = lasg(*call, "--json")
    assert done.code == 1
    assert [row["loss"] for row in json.loads(done.out)] == [None, None]


def write_two_clouds(path: Path) -> None:
    """Write a LIBSVM file on which SGD goes further down than LASG-WK2 within the same iterations."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat([-1, 1], 100))
    rows = rng.normal(size=(200, 8)) + 0.7 * labels[:, None]
    lines = (
        f"{y:+d} " + " ".join(f"{j}:{x:.4f}" for j, x in enumerate(row, 1)) for y, row in zip(labels, rows, strict=True)
    )
    path.write_text("\n".join(lines) + "\n")


def test_savings_are_at_a_loss_that_all_reached_where_none_was_aimed_at(lasg: Lasg) -> None:
    write_two_clouds(Path("my.svm"))
    call = ("compare", "libsvm:my.svm", "-a", "sgd,lasg-wk2", "--seeds", 1, "-j", 1, "--until", "iterations=300")
    sgd, lazy = ok(lasg(*call, "--set", "eta=2", "--set", "c=1", "--json"))
    assert lazy["loss"] > 1.1 * sgd["loss"], "or this tests nothing"
    at_the_end = sgd["uploads"] / lazy["uploads"]
    traces = {run.spec.algorithm: run.trace for run in map(store.read, folders())}
    loss = sgd["savings_loss"]
    for row in (sgd, lazy):
        trace = traces[row["algorithm"]]
        i = int(np.flatnonzero(trace["loss"] <= loss)[0])
        assert trace["uploads"][i - 1] <= row["uploads_to_savings_loss"] <= trace["uploads"][i]
        crossed = np.interp(-loss, -trace["loss"][[i - 1, i]], trace["uploads"][[i - 1, i]])
        assert row["uploads_to_savings_loss"] == pytest.approx(crossed)
    assert lazy["fewer_uploads"] == sgd["uploads_to_savings_loss"] / lazy["uploads_to_savings_loss"]
    assert lazy["fewer_uploads"] < at_the_end
    text = fine(lasg(*call, "--set", "eta=2", "--set", "c=1"))
    assert f"savings compare what each spent to reach loss {loss:g}" in text
    assert f"{sgd['loss']:.4f}" in text
    assert f"{lazy['loss']:.4f}" in text


def test_without_sgd_compare_says_why_there_are_no_savings(lasg: Lasg) -> None:
    text = fine(lasg("compare", *QUICK, "-a", "lasg-wk2,qsgd", "--seeds", 1, "-j", 1))
    assert "No savings: they are against sgd, which is not among the algorithms." in text


def test_compare_takes_all_algorithms_by_default(lasg: Lasg) -> None:
    rows = ok(lasg("compare", *QUICK, "--seeds", 1, "-j", 1, "--json"))
    assert [row["algorithm"] for row in rows] == list(ALGORITHMS)


# -- tune ----------------------------------------------------------------------------------------------------

GRID = ("tune", *QUICK, "-a", "sgd", "--grid", "eta=0.001,1,1e30,D=5,6", "--seeds", 2, "-j", 1)


def test_tune_prints_the_best_first_and_diverged_last(lasg: Lasg) -> None:
    text = fine(lasg(*GRID))
    lines = text.splitlines()
    assert next(line for line in reversed(lines) if line.strip()).startswith("Best: --set eta=1")
    assert text.count("diverged") == 2
    rows = ok(lasg(*GRID, "--json"))
    assert [row["settings"]["eta"] for row in rows] == [1, 1, 0.001, 0.001, 1e30, 1e30]
    assert rows[0]["loss"] < rows[2]["loss"]
    assert rows[-1]["loss"] is None


def test_tune_to_a_loss_ranks_by_uploads(lasg: Lasg) -> None:
    call = ("tune", "breast-cancer", "-a", "lasg-wk2", "--grid", "c=0,0.5", "--seeds", 1, "-j", 1)
    rows = ok(lasg(*call, "--set", "eta=0.1", "--until", "loss=0.6", "--out", "runs", "--json"))
    assert [row["settings"]["c"] for row in rows] == [0.5, 0]
    assert rows[0]["uploads"] < rows[1]["uploads"]


# -- paper ---------------------------------------------------------------------------------------------------


def test_table1_of_mnist_is_within_15_per_cent_of_the_paper(lasg: Lasg, real_data: Path, paper_tables: Path) -> None:
    call = ("paper", "table1", "--task", "mnist-lr", "--seeds", 1, "-j", 1, "--data-dir", real_data)
    rows = ok(lasg(*call, "--json"))
    with paper_tables.open(newline="") as file:
        printed = [row for row in csv.DictReader(file) if (row["table"], row["task"]) == ("1", "mnist-lr")]
    assert list(rows[0]) == [*printed[0], "ours", "spread", "seeds", "deviation"]
    for row, cell in zip(rows, printed, strict=True):
        assert {name: str(row[name]) for name in COLUMNS} == {**cell, "loss": str(float(cell["loss"]))}
        assert (row["seeds"], row["spread"]) == (1, None)
        assert row["deviation"] == pytest.approx(row["ours"] / row["loss"] - 1)
        assert abs(row["deviation"]) <= 0.15, row
    assert len(rows) == 12
    text = fine(lasg(*call))
    assert "mnist-lr, heterogeneous, loss after 1,000 uploads" in text
    assert "12 cells:" in text
    with Path("lasg-paper/table1-mnist-lr.csv").open(newline="") as file:
        assert [row["algorithm"] for row in csv.DictReader(file)] == list(ALGORITHMS)
    markdown = Path("lasg-paper/table1-mnist-lr.md").read_text()
    assert "lasg paper table1 --seeds 1 --first-seed 0 --task mnist-lr" in markdown


def test_the_toy_figure_as_json_is_one_document(lasg: Lasg) -> None:
    call = ("paper", "toy", "--task", "breast-cancer", "--task", "digits", "--seeds", 1, "-j", 1, "--json")
    rows = ok(lasg(*call, "--csv", "log.csv"))
    logged = {line.split(",")[1] for line in Path("log.csv").read_text(encoding="utf-8").splitlines()[1:]}
    assert logged == {"breast-cancer", "digits"}
    assert {"iteration", "lag-wk c=0.4", "lag-wk c=4", "lasg-wk2 c=0.1"} <= set(rows[0])
    assert rows[0]["iteration"] == 0
    assert {row["task"] for row in rows} == {"breast-cancer", "digits"}
    assert list(Path("lasg-paper").glob("toy*.csv"))


# -- demo, as a user calls it --------------------------------------------------------------------------------


def test_demo_compares_the_twelve_and_draws(tmp_path: Path) -> None:
    done = spawn("demo", "--seeds", 1, "--out", tmp_path / "demo")
    text = fine(done)
    rows = {line.split()[0]: line for line in text.splitlines() if line.split() and line.split()[0] in ALGORITHMS}
    assert list(rows) == list(ALGORITHMS)
    for word in ("algorithm", "iterations", "uploads", "bits", "up", "down", "gradient", "fewer"):
        assert word in text
    assert "…" not in text, "numbers were cut off in a terminal of 80 columns"
    assert all("not reached" in row or "x" in row for row in rows.values())
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(PNG)
    assert f"Plot: {tmp_path / 'demo' / 'demo.png'}" in text
    assert f"Report, for your browser: {tmp_path / 'demo' / 'report.html'}" in text
    assert (tmp_path / "demo" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert rows["sgd"].split()[-2:] == ["1.0x", "1.0x"]
    assert len(rows["sgd"].split()) == 8, "a number and two savings for every column of the issue"


def test_demo_as_json_has_the_twelve(lasg: Lasg, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "DEMO_TARGET", 1.5)
    rows = ok(lasg("demo", "--seeds", 1, "-j", 1, "--json"))
    assert [row["algorithm"] for row in rows] == list(ALGORITHMS)
    assert all(row["reached"] == 1 for row in rows)
    assert Path("lasg-demo/demo.png").is_file()


def test_tables_of_what_went_wrong_fit_80_columns() -> None:
    done = spawn("compare", *QUICK, "-a", "sgd,laqsg-pse", "--seeds", 2, "-j", 1, "--set", "eta=1e30")
    assert done.code == 1
    assert "…" not in done.out
    assert done.out.count("diverged (2 of 2 seeds)") == 2
