"""The named tasks have the settings that reproduce the paper's tables."""

from typing import Any

import pytest

from lasg.errors import LasgError
from lasg.runs.tasks import TASKS, task

# ../shared/paper/NOTES.md: the table of the data, H, the bits and the rules' constants.
PAPER: dict[str, dict[str, Any]] = {
    "ijcnn1-lr": {"data": "ijcnn1.t", "workers": 10, "eta": 0.1, "batch": 0.01, "D": 100, "H": 50, "bits": 4},
    "mnist-lr": {"data": "mnist-3-5", "workers": 10, "eta": 0.01, "batch": 0.01, "D": 100, "H": 10, "bits": 4},
    "covtype-lr": {"data": "covtype", "workers": 20, "eta": 0.1, "batch": 0.001, "D": 100, "H": 20, "bits": 4},
}
SHARED: dict[str, Any] = {"lam": 1e-5, "c": 0.1, "window": 10, "start": "ask-twice", "optimizer": "sgd", "bucket": None}


def test_the_tasks_are_those_of_the_issue() -> None:
    networks = ["mnist-nn", "tiny-imagenet", "text-lm"]
    assert list(TASKS) == ["digits", "breast-cancer", "ijcnn1-lr", "mnist-lr", "covtype-lr", *networks]


@pytest.mark.parametrize("name", PAPER)
def test_a_task_of_the_paper_has_the_papers_settings(name: str) -> None:
    spec = task(name).spec("lasg-wk2")
    for key, value in {**PAPER[name], **SHARED, "smoothness": "paper", "schedule": "constant"}.items():
        assert getattr(spec, key) == value, key


def test_digits_is_split_over_ten_workers() -> None:
    assert task("digits").spec("sgd").workers == 10


def test_text_is_split_over_four_workers_by_whole_parts() -> None:
    spec = task("text-lm").spec("sgd")
    assert (spec.workers, spec.partition, spec.cut, spec.lam) == (4, "sorted", 1780, 0)
    assert (spec.H, spec.bits, spec.D, spec.iterations) == (20, 8, 50, 400)
    assert task("text-lm").spec("sgd", setting="homogeneous").cut is None


@pytest.mark.parametrize(("setting", "partition"), [("homogeneous", "homogeneous"), ("heterogeneous", "sorted")])
def test_a_setting_is_a_partition(setting: str, partition: str) -> None:
    assert task("digits").spec("sgd", setting=setting).partition == partition


def test_changes_replace_a_tasks_defaults() -> None:
    spec = task("digits").spec("sgd", seed=4, eta=0.5, partition="dirichlet", alpha=0.1)
    assert (spec.seed, spec.eta, spec.partition, spec.alpha) == (4, 0.5, "dirichlet", 0.1)


def test_a_file_is_a_task() -> None:
    assert task("libsvm:/tmp/a.txt").spec("sgd").data == "libsvm:/tmp/a.txt"


@pytest.mark.parametrize("name", ["digit", "nonsense", "mnist"])
def test_an_unknown_task_lists_the_known_ones(name: str) -> None:
    with pytest.raises(LasgError) as error:
        task(name)
    assert all(known in str(error.value) for known in TASKS)
    assert ("Did you mean digits?" in str(error.value)) == (name == "digit")


def test_an_unknown_setting_names_the_two() -> None:
    with pytest.raises(LasgError, match="homogeneous or heterogeneous"):
        task("digits").spec("sgd", setting="mixed")
