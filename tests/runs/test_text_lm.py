"""The task text-lm: which text a worker has, what is measured, and that it trains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lasg.data import text
from lasg.data.loaders import load
from lasg.errors import LasgError
from lasg.problems.module import ModuleProblem
from lasg.runs import factories, runner
from lasg.runs.tasks import task


def made(**changes: Any) -> ModuleProblem:
    found = factories.problem(task("text-lm").spec("sgd", **changes))
    assert isinstance(found, ModuleProblem)
    return found


def domains(of: ModuleProblem) -> list[list[int]]:
    """The parts that each worker's windows are of."""
    labels = np.repeat(np.arange(8), text.TRAIN)
    return [np.unique(labels[rows]).tolist() for rows in np.split(of.order, np.cumsum(of.sizes)[:-1])]


@pytest.mark.parametrize("workers", [1, 4, 8])
def test_worker_m_has_part_m(workers: int) -> None:
    of = made(workers=workers)
    assert domains(of) == [[m] for m in range(workers)]
    assert of.sizes.tolist() == [text.TRAIN] * workers
    assert of.batch.tolist() == [16] * workers


def test_in_the_homogeneous_setting_every_worker_has_windows_of_the_same_parts() -> None:
    of, apart = made(setting="homogeneous"), made()
    assert domains(of) == [[0, 1, 2, 3]] * 4
    assert sorted(of.order) == sorted(apart.order)
    assert of.loss(of.start(), np.arange(4)) == apart.loss(apart.start(), np.arange(4))


def test_inputs_are_characters_and_targets_the_next_ones() -> None:
    of = made()
    x, y = of._minibatch(0, 0, np.arange(3))
    assert x.dtype == y.dtype == torch.int64
    assert x.shape == y.shape == (3, text.CONTEXT)
    assert torch.equal(x[:, 1:], y[:, :-1])
    windows = load("king-james").features
    assert torch.equal(x[2], torch.from_numpy(windows[2, :-1].astype(np.int64)))


def test_the_loss_is_measured_on_every_eighth_window_and_the_accuracy_on_the_held_out_ones() -> None:
    of = made()
    assert of.p == 817_727
    assert of.measured is not None
    np.testing.assert_array_equal(of.measured, np.arange(0, 4 * text.TRAIN, 8))
    assert of.test is not None
    assert len(of.test) == 4 * text.TEST


def test_the_start_is_the_seeds() -> None:
    one, other = made(seed=1).start(), made(seed=2).start()
    assert torch.equal(one, made(seed=1).start())
    assert not torch.equal(one, other)


def test_it_trains_and_two_runs_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two windows per gradient, and a loss of few windows, so that it takes seconds."""
    monkeypatch.setattr(factories, "MEASURED_WINDOWS", 256)
    spec = task("text-lm").spec("lasg-wk2", batch=2 / text.TRAIN, eta=0.1, iterations=8, evaluate=8)
    first, second = (runner.run(spec, tmp_path / name) for name in ("first", "second"))
    assert first.status == "done"
    before, after = first.trace["loss"]
    assert after < before - 0.5
    np.testing.assert_array_equal(first.trace["loss"], second.trace["loss"])
    np.testing.assert_array_equal(first.trace["accuracy"], second.trace["accuracy"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workers": 9}, "9 workers need 8"),
        ({"model": None}, "king-james holds text, for networks: set model to transformer"),
        ({"model": "mlp"}, "model mlp takes numbers, these samples are text"),
        ({"augment": True}, "augment is for images, and king-james holds text"),
        ({"data": "digits", "cut": None}, "model transformer takes text"),
    ],
)
def test_what_does_not_fit_text_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(LasgError, match=words):
        made(**change)
