"""Runs end where they should, are the same every time, and are not run twice."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lasg.errors import LasgError
from lasg.runs import factories, pool, runner, store
from lasg.runs.files import lock
from lasg.runs.runner import Job, obtain, run
from lasg.runs.spec import BUDGETS, Spec
from lasg.runs.status import Status
from lasg.runs.store import Run
from lasg.runs.tasks import task
from tests.runs.samples import same_bytes, small

COLUMN = {"uploads": "uploads", "bits": "bits_up", "gradients": "gradients", "iterations": "iterations"}


@pytest.mark.parametrize("algorithm", ["sgd", "lasg-wk2", "laqsg-pse", "local-sgd"])
@pytest.mark.parametrize(("kind", "value"), [("uploads", 41), ("bits", 20_000), ("gradients", 100)])
def test_a_run_ends_at_the_first_round_that_reaches_its_budget(
    tmp_path: Path, algorithm: str, kind: str, value: int
) -> None:
    found = run(small(algorithm, iterations=10_000, until={kind: value}), tmp_path / "run")
    spent = found.trace[COLUMN[kind]]
    assert found.status == "done"
    assert spent[-1] >= value
    assert (spent[:-1] < value).all()


@pytest.mark.parametrize(("algorithm", "expected"), [("sgd", 25), ("lasg-ps", 25), ("local-sgd", 28), ("lag+H9", 27)])
def test_a_run_ends_at_the_first_round_that_reaches_its_iterations(
    tmp_path: Path, algorithm: str, expected: int
) -> None:
    iterations = run(small(algorithm, iterations=25), tmp_path / "run").trace["iterations"]
    assert iterations[-1] == expected
    assert iterations[-2] < 25


def test_a_run_ends_at_the_first_evaluation_with_the_loss(tmp_path: Path) -> None:
    loss = run(small("lasg-wk2", iterations=5000, until={"loss": 0.6}), tmp_path / "run").trace["loss"]
    assert loss[-1] <= 0.6
    assert (loss[:-1] > 0.6).all()


def test_the_first_of_several_budgets_ends_a_run(tmp_path: Path) -> None:
    found = run(small("sgd", until={"uploads": 1000, "gradients": 30, "loss": 1e-9}), tmp_path / "run")
    assert found.trace["gradients"][-1] == 30


@pytest.mark.parametrize("kind", BUDGETS)
def test_no_kind_of_budget_in_a_specs_until_is_ignored(tmp_path: Path, kind: str) -> None:
    try:
        spec = small("sgd", until={kind: 0.6 if kind == "loss" else 5}, iterations=3000)
    except LasgError:
        return
    assert run(spec, tmp_path / "run").trace["rounds"][-1] < 3000


def test_the_loss_when_the_budget_is_spent_is_the_last_of_the_trace(tmp_path: Path) -> None:
    found = run(small("sgd", evaluate=50, until={"uploads": 40}), tmp_path / "run")
    assert found.trace["rounds"].tolist() == [0, 7]


def test_geometric_evaluations_come_ten_per_cent_apart(tmp_path: Path) -> None:
    rounds = run(small("sgd", evaluate="geometric", iterations=500), tmp_path / "run").trace["rounds"]
    assert (rounds[:10] == range(10)).all()
    assert (rounds[20:-1] <= 1.1 * rounds[19:-2] + 1).all()
    assert len(rounds) < 80


ALIKE = [
    small("laqsg-wk2", seed=3),
    small("lasg-wk1", seed=4),
    small("lasg-pse", dtype="float64"),
    small("local-sgd"),
]


def test_same_spec_same_run_bit_for_bit_in_process_and_through_the_pool(tmp_path: Path) -> None:
    reported: list[Status] = []
    pooled = pool.obtain_all(ALIKE, tmp_path / "pool", jobs=2, report=reported.append)
    for spec, other in zip(ALIKE, pooled, strict=True):
        one, two = (run(spec, tmp_path / name / spec.label) for name in ("one", "two"))
        assert same_bytes(one.trace, two.trace)
        assert same_bytes(one.trace, other.trace)
        assert other.folder == tmp_path / "pool" / spec.label
    assert {status.spec.label for status in reported} == {spec.label for spec in ALIKE}


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    one, two = (run(small("sgd", seed=seed), tmp_path / str(seed)) for seed in (0, 1))
    assert not same_bytes(one.trace["loss"], two.trace["loss"])


def test_a_fault_in_one_process_of_the_pool_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="457 workers cannot share 456 samples"):
        pool.obtain_all([small("sgd", workers=457, seed=seed) for seed in (0, 1)], tmp_path, jobs=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "values",
    [
        {"algorithm": "sgd", "eta": 1e30},
        {"algorithm": "lasg-wk2", "eta": 1e38},
        {"algorithm": "lasg-pse", "eta": 1e300},
        {"algorithm": "local-sgd", "eta": 1e38},
        {"algorithm": "sgd", "eta": 1e60, "dtype": "float64"},
        {"algorithm": "qsgd", "eta": 1e60, "dtype": "float64"},
        {"algorithm": "laqsg-wk2", "eta": 1e60, "dtype": "float64"},
        {"algorithm": "sgd", "eta": 1e38, "data": "digits"},
        {"algorithm": "sgd", "optimizer": "SGD", "eta": 1e30, "optimizer_options": {"momentum": 0.9}},
        {"algorithm": "sgd", "eta": 1e-3, "lam": 1e30},
    ],
    ids=str,
)
def test_a_diverging_run_ends_as_diverged_with_a_message_and_no_warning(tmp_path: Path, values: dict[str, Any]) -> None:
    found = run(small(**values), tmp_path / "run")
    assert found.status == "diverged"
    assert "smaller eta" in found.meta["message"]
    assert "\n" not in found.meta["message"]
    again = store.read(tmp_path / "run")
    assert again.status == "diverged"
    assert len(again.trace["loss"]) >= 1


@pytest.mark.parametrize(
    "values",
    [
        {"schedule": "PolynomialLR"},
        {"schedule": "CosineAnnealingLR", "schedule_options": {"T_max": 5}},
        {"schedule": "OneCycleLR", "schedule_options": {"max_lr": 0.5, "total_steps": 100}},
        {"schedule": "MultiStepLR", "schedule_options": {"milestones": [3, 9]}},
        {"schedule": "CyclicLR", "schedule_options": {"base_lr": 0.01, "max_lr": 0.1}},
        {"schedule": "decreasing", "schedule_options": {"mu": 1.0, "K0": 20.0}},
        {"c": float("inf")},
        {"c": 0},
        {"D": 1},
        {"batch": 1.0},
        {"partition": "dirichlet", "alpha": 0.2},
        {"partition": "classes", "classes": 1},
        {"workers": 1},
        {"workers": 456},
        {"watch": []},
    ]
    + [{"optimizer": name} for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Rprop", "ASGD", "NAdam")],
    ids=str,
)
@pytest.mark.parametrize("algorithm", ["lasg-wk2", "local-sgd"])
def test_every_valid_setting_runs_and_is_stored(tmp_path: Path, algorithm: str, values: dict[str, Any]) -> None:
    found = run(small(algorithm, **values), tmp_path / "run")
    assert found.status == "done"
    assert found.trace["loss"][-1] < 1
    assert store.read_checkpoint(tmp_path / "run") is not None


@pytest.mark.parametrize("algorithm", ["lasg-wk2", "local-sgd"])
def test_a_step_that_is_zero_when_squared_is_no_accident(tmp_path: Path, algorithm: str) -> None:
    with suppress(LasgError):
        assert run(small(algorithm, eta=1e-200), tmp_path / "run").status == "done"


# -- obtain ---------------------------------------------------------------------------------------------


def stamp(found: Run) -> int:
    return (found.folder / "meta.json").stat().st_mtime_ns


def test_a_stored_run_is_read_and_not_run_again(tmp_path: Path) -> None:
    first = obtain(small("sgd"), tmp_path)
    second = obtain(small("sgd"), tmp_path)
    assert stamp(first) == stamp(second)
    assert second.meta == first.meta


def test_fresh_runs_again_with_the_same_numbers(tmp_path: Path) -> None:
    first = obtain(small("sgd"), tmp_path)
    trace, before = first.trace, stamp(first)
    second = obtain(small("sgd"), tmp_path, fresh=True)
    assert stamp(second) > before
    assert same_bytes(second.trace, trace)


def test_a_diverged_run_is_not_run_again(tmp_path: Path) -> None:
    spec = small("sgd")
    run = store.begin(tmp_path / spec.label, spec, factories.dataset(spec.data, None).sha256)
    store.write_meta(tmp_path / spec.label, {**run, "status": "diverged", "message": "m"})
    assert obtain(spec, tmp_path).status == "diverged"


def test_a_stored_run_on_other_data_is_run_again(tmp_path: Path) -> None:
    """A LIBSVM file may change under its name: the old numbers must not be shown for the new file."""
    lines = [f"{i % 2} 1:{i % 2} 2:{(i * 7) % 10 / 10}" for i in range(60)]
    file = tmp_path / "mine.svm"
    losses = []
    for text in ("\n".join(lines), "\n".join(reversed(lines[:40]))):
        file.write_text(text + "\n")
        factories.dataset.cache_clear()
        factories._problem.cache_clear()
        spec = task(f"libsvm:{file}").spec("sgd", workers=2, batch=0.5, iterations=20)
        losses.append(obtain(spec, tmp_path / "runs").trace["loss"][-1])
    assert losses[0] != losses[1]


def test_two_writers_of_one_run_are_told_apart(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(LasgError, match="another process is writing"):
        run(small("sgd"), tmp_path)


def test_a_run_whose_schedule_ends_too_early_leaves_nothing(tmp_path: Path) -> None:
    options = {"max_lr": 0.1, "total_steps": 3}
    spec = small("sgd").but(optimizer="SGD", schedule="OneCycleLR", schedule_options=options, iterations=9)
    with pytest.raises(LasgError, match="schedule cannot go on"):
        run(spec, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_that_has_a_checkpoint_is_not_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", 0.0)
    options = {"max_lr": 0.1, "total_steps": 3}
    spec = small("sgd").but(optimizer="SGD", schedule="OneCycleLR", schedule_options=options, iterations=9)
    with pytest.raises(LasgError, match="schedule cannot go on"):
        run(spec, tmp_path)
    assert store.read(tmp_path).status == "running"
    assert store.read_checkpoint(tmp_path) is not None


@pytest.mark.parametrize(
    ("optimizer", "given", "schedule", "more"),
    [
        ("Adam", {"betas": [0.9]}, "constant", {}),
        ("Adam", {"capturable": True}, "constant", {}),
        ("SGD", {}, "StepLR", {"step_size": 0}),
        ("SGD", {}, "StepLR", {"step_size": "a"}),
        ("sgd", {}, "constant", {"gamma": 2}),
    ],
)
def test_options_that_torch_refuses_late_are_refused_before_anything_is_written(
    tmp_path: Path, optimizer: str, given: dict[str, Any], schedule: str, more: dict[str, Any]
) -> None:
    changes = {"optimizer": optimizer, "optimizer_options": given, "schedule": schedule, "schedule_options": more}
    with pytest.raises(LasgError, match="options"):
        run(small("sgd").but(**changes), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def interrupt(spec: Spec, folder: Path, rounds: int) -> None:
    """Leave a run as a kill after `rounds` rounds would: running, with a checkpoint."""
    job = Job.from_spec(spec, None)
    store.begin(folder, spec, factories.dataset(spec.data, None).sha256)
    job.evaluate()
    for _ in range(rounds):
        job.trace.add_round(job.training.step())
        job.evaluate()
    store.write_checkpoint(folder, job.state())


def test_a_run_under_way_is_continued_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "REPORT_SECONDS", 0.0)
    spec = small("lasg-wk2")
    interrupt(spec, runner.folder_for(spec, tmp_path), 37)
    seen: list[int] = []
    found = obtain(spec, tmp_path, report=lambda status: seen.append(status.ledger.rounds))
    assert (seen[0], seen[-1]) == (38, 60)
    assert found.status == "done"
    assert same_bytes(found.trace, run(spec, tmp_path / "whole").trace)


def test_a_run_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    spec = small("lasg-wk2")
    store.begin(tmp_path / "run", spec, factories.dataset(spec.data, None).sha256)
    assert same_bytes(runner.resume(tmp_path / "run").trace, run(spec, tmp_path / "whole").trace)


def test_a_finished_run_is_not_touched_by_resume(tmp_path: Path) -> None:
    first = run(small("sgd"), tmp_path / "run")
    before = stamp(first)
    assert runner.resume(tmp_path / "run").meta == first.meta
    assert stamp(first) == before


def test_a_run_begun_on_other_data_is_not_continued(tmp_path: Path) -> None:
    store.begin(tmp_path / "run", small("sgd"), "0" * 64)
    with pytest.raises(LasgError, match="other data"):
        runner.resume(tmp_path / "run")


def test_progress_goes_from_little_to_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "REPORT_SECONDS", 0.0)
    shares: list[float] = []
    run(small("local-sgd", iterations=25), tmp_path / "run", report=lambda status: shares.append(status.share))
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.2
    assert shares[-1] == 1
