"""Networks as tasks: from a spec to a stored run, small, on embedded data; on the real images where they are here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lasg.cli import pretrained
from lasg.core.algorithms import ALGORITHMS
from lasg.errors import Faulty, LasgError
from lasg.problems.models import CNN, ResNet18, model, read_weights
from lasg.problems.module import ModuleProblem
from lasg.problems.regression import Regression
from lasg.runs import factories, runner, store
from lasg.runs.spec import Spec
from lasg.runs.tasks import task
from tests.runs.samples import Stopped, stop_after

RUNNABLE = [name for name, row in ALGORITHMS.items() if row.rule.name != "ps"]


def small(algorithm: str = "lasg-wk2", **changes: Any) -> Spec:
    """One hidden layer on the embedded digits."""
    return task("digits").spec(algorithm, **{"model": "mlp", "iterations": 30, "evaluate": 10, "H": 3, **changes})


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_algorithm_trains_a_network_from_a_spec(tmp_path: Path, name: str) -> None:
    found = runner.run(small(name), tmp_path)
    assert found.status == "done"
    loss = found.trace["loss"]
    assert loss[-1] < loss[0]
    assert np.isfinite(found.trace["accuracy"]).all()


def test_ps_is_refused_for_a_network_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="lasg-pse estimates"):
        runner.run(small("lasg-ps"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("eager")
def test_a_network_run_that_is_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    spec = small("laqsg-wk1", clip=0.5)
    whole = runner.run(spec, tmp_path / "whole")

    with pytest.raises(Stopped):
        runner.run(spec, tmp_path / "cut", report=stop_after(17))
    resumed = runner.resume(tmp_path / "cut")
    for name, values in whole.trace.items():
        np.testing.assert_array_equal(resumed.trace[name], values)
    models = [(run.folder / store.MODEL).read_bytes() for run in (whole, resumed)]
    assert models[0] == models[1]


def test_the_stored_model_is_the_trained_one_by_name(tmp_path: Path) -> None:
    spec = small("sgd")
    found = runner.run(spec, tmp_path)
    net = model("mlp", (1, 8, 8), 10, 0)
    net.load_state_dict(load_file(found.folder / store.MODEL))
    data = factories.dataset(spec.data, None)
    with torch.no_grad():
        output = net(torch.from_numpy(np.array(data.test_features)))
    right = (output.argmax(1).numpy() == data.test_labels).mean()
    assert right == pytest.approx(found.trace["accuracy"][-1])


def test_a_regression_keeps_its_model_too(tmp_path: Path) -> None:
    found = runner.run(task("digits").spec("sgd", iterations=20), tmp_path)
    assert load_file(found.folder / store.MODEL)["theta"].shape == (64, 10)


def test_training_and_evaluation_are_timed_apart(tmp_path: Path) -> None:
    found = runner.run(small("sgd"), tmp_path)
    assert found.meta["seconds"] > 0
    assert found.meta["evaluation_seconds"] > 0


def test_marks_are_evaluated_when_they_are_passed(tmp_path: Path) -> None:
    spec = small("sgd", evaluate=12, marks={"uploads": 75, "gradients": 200})
    found = runner.run(spec, tmp_path)
    assert found.trace["rounds"].tolist() == [0, 8, 12, 20, 24, 30], "the schedule stays as it is"


def test_threads_are_part_of_the_spec_and_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    seen = []
    runner.run(small("sgd", threads=2), tmp_path, report=lambda status: seen.append(torch.get_num_threads()))
    assert set(seen) == {2}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "nothing"}, "unknown model 'nothing'"),
        ({"model": "cnn"}, "16 x 16 or more"),
        ({"device": "cuda:99"}, "cannot be used here"),
        ({"weights": "nowhere"}, "there is no weight file 'nowhere'"),
    ],
)
def test_what_no_network_can_be_made_of_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(LasgError, match=words):
        runner.run(small("sgd", **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "x"},
        {"device": "cpu"},
        {"autocast": "bfloat16"},
        {"augment": True},
        {"threads": 2},
        {"batch_norm": "local"},
    ],
)
def test_a_networks_settings_are_refused_without_a_model(change: dict[str, Any]) -> None:
    with pytest.raises(LasgError, match="is a network's setting, and the run has no model"):
        task("digits").spec("sgd", **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clip": 0}, "clip must be a positive number"),
        ({"clip": "1"}, "clip must be a number"),
        ({"patience": 0}, "patience must be an integer >= 1"),
        ({"threads": -1}, "threads must be an integer >= 1"),
        ({"augment": 1}, "augment must be true or false"),
        ({"autocast": "float8"}, "autocast must be 'bfloat16' or 'float16'"),
        ({"marks": {"loss": 0.1}}, "marks are uploads, bits or gradients"),
        ({"marks": {"uploads": -1}}, "the budget uploads must be a positive number"),
    ],
)
def test_wrong_settings_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(LasgError, match=words):
        small("sgd", **change)


# -- weights -------------------------------------------------------------------------------------------------


def test_a_run_starts_from_its_weights_and_knows_them(tmp_path: Path) -> None:
    first = runner.run(small("sgd"), tmp_path / "first")
    path = first.folder / store.MODEL
    second = runner.run(small("sgd", weights=str(path)), tmp_path / "second")
    assert second.trace["loss"][0] == pytest.approx(first.trace["loss"][-1])
    assert second.meta["data_sha256"] != first.meta["data_sha256"]


def test_a_run_is_not_resumed_from_other_weights(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file(model("mlp", (1, 8, 8), 10, 1).state_dict(), path)
    spec = small("sgd", weights=str(path))
    out = tmp_path / "runs"
    first = runner.obtain(spec, out)
    began = first.trace["loss"][0]
    save_file(model("mlp", (1, 8, 8), 10, 2).state_dict(), path)
    second = runner.obtain(spec, out)
    assert first.meta["data_sha256"] != second.meta["data_sha256"]
    assert second.trace["loss"][0] != began


def test_weights_are_read_from_torchs_files_too_but_no_code_is_run(tmp_path: Path) -> None:
    net = ResNet18(classes=5)
    torch.save(net.state_dict(), tmp_path / "good.pth")
    assert torch.equal(read_weights(tmp_path / "good.pth")["fc.bias"], net.fc.bias)
    torch.save(Danger(tmp_path / "ran"), tmp_path / "bad.pth")
    with pytest.raises(LasgError, match="cannot read the weights"):
        read_weights(tmp_path / "bad.pth")
    assert not (tmp_path / "ran").exists()


class Danger:
    """What runs code when Python's pickle reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\x03\x04"])
@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_damaged_weight_file_is_one_line(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LasgError, match="cannot read the weights") as error:
        read_weights(tmp_path / name)
    assert "\n" not in str(error.value)


def test_a_file_without_weights_by_name_is_refused(tmp_path: Path) -> None:
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    with pytest.raises(LasgError, match="does not hold weights by name"):
        read_weights(tmp_path / "list.pth")


def test_weights_of_another_model_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cnn.safetensors"
    save_file(CNN().state_dict(), path)
    with pytest.raises(LasgError, match=r"cnn\.safetensors: the weights are of another model"):
        runner.run(small("sgd", weights=str(path)), tmp_path / "run")


def test_pretrained_weights_are_those_of_a_run_that_is_done(tmp_path: Path) -> None:
    found = runner.run(small("sgd"), tmp_path)
    place = pretrained.install(found, "mine")
    assert place.read_bytes() == (found.folder / store.MODEL).read_bytes()
    with pytest.raises(LasgError, match="running"):
        pretrained.install(store.Run(found.folder, found.spec, {**found.meta, "status": "running"}), "mine")


def test_pretraining_is_central() -> None:
    for name in pretrained.RECIPES:
        spec = pretrained.recipe(name)
        assert (spec.workers, spec.algorithm) == (1, "sgd")
    with pytest.raises(LasgError, match="Did you mean resnet18-tiny-imagenet-10a"):
        pretrained.recipe("resnet18-tiny-imagenet-10b")


# -- gradients that are not finite ---------------------------------------------------------------------------


class Poisoned(ModuleProblem):
    """Worker 2's gradients are NaN from iteration 5 on."""

    until = 10**9

    def gradients(self, iteration: int, points: Any, rows: Any) -> Any:
        found = super().gradients(iteration, points, rows)
        who = np.arange(self.workers) if rows is None else rows
        if 5 <= iteration < self.until and 2 in who:
            found[0][int(np.flatnonzero(who == 2)[0])][0] = torch.nan
        return found


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> type[Poisoned]:
    factories._problem.cache_clear()
    monkeypatch.setattr("lasg.problems.module.ModuleProblem", Poisoned)
    monkeypatch.setattr(Poisoned, "until", 10**9)
    return Poisoned


def test_broken_gradients_are_silence_and_are_reported_with_worker_and_round(
    tmp_path: Path, poisoned: type[Poisoned], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poisoned, "until", 9)
    reported: list[tuple[int, int]] = []
    found = runner.run(small("sgd"), tmp_path, report=lambda status: reported.extend(status.broken))
    factories._problem.cache_clear()
    assert found.status == "done"
    assert reported == found.trace["broken"].tolist() == [(k, 2) for k in range(5, 9)] or reported == [
        tuple(row) for row in found.trace["broken"].tolist()
    ]
    assert found.meta["broken_gradients"] == 4
    assert found.uploads[4:10, 2].tolist() == [True, False, False, False, False, True]


def test_a_run_stops_with_an_error_and_a_checkpoint_and_can_be_resumed(
    tmp_path: Path, poisoned: type[Poisoned], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small("lasg-wk2", patience=4)
    with pytest.raises(Faulty, match="worker 2 had no finite gradient in 4 rounds in a row, the last of them round 8"):
        runner.run(spec, tmp_path / "run")
    stopped = store.read(tmp_path / "run")
    assert stopped.status == "running"
    assert store.read_checkpoint(tmp_path / "run") is not None
    with pytest.raises(Faulty, match="the last of them round 12"):
        runner.resume(tmp_path / "run")
    monkeypatch.setattr(poisoned, "until", 0)
    mended = runner.resume(tmp_path / "run")
    factories._problem.cache_clear()
    assert mended.status == "done"
    assert mended.trace["broken"].tolist() == [[k, 2] for k in range(5, 13)]
    assert mended.uploads[13, 2], "whoever was silent beyond D, or never, is heard again"


# -- the real data -------------------------------------------------------------------------------------------


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure loss and accuracy on the first 128 samples only."""
    whole = ModuleProblem._outputs

    def some(self: ModuleProblem, data: Any, rows: Any, module: Any) -> Any:
        return whole(self, data, rows[:128], module)

    monkeypatch.setattr(ModuleProblem, "_outputs", some)


@pytest.mark.usefixtures("quickly")
def test_the_papers_cnn_trains_on_the_real_digits(tmp_path: Path, real_data: Path) -> None:
    """The same code as the tables', for a few rounds."""
    found = runner.run(task("mnist-nn").spec("lasg-wk2", iterations=20, evaluate=20), tmp_path, data_dir=real_data)
    assert found.trace["loss"][-1] < found.trace["loss"][0]
    problem = factories.problem(found.spec, real_data)
    assert isinstance(problem, ModuleProblem)
    assert problem.p == 431_080
    assert problem.batch.tolist() == [4, 6, 8, 10, 12, 12, 14, 16, 18, 20]


@pytest.mark.usefixtures("quickly")
def test_resnet18_fine_tunes_on_the_real_images(tmp_path: Path, real_data: Path) -> None:
    start = tmp_path / "start.safetensors"
    save_file({name: value.contiguous() for name, value in ResNet18(classes=10).state_dict().items()}, start)
    spec = task("tiny-imagenet").spec(
        "lasg-wk2", setting="homogeneous", iterations=3, evaluate=3, batch=0.004, weights=str(start)
    )
    found = runner.run(spec, tmp_path / "run", data_dir=real_data)
    assert found.status == "done"
    stored = load_file(found.folder / store.MODEL)
    assert stored["bn1.num_batches_tracked"] == 3
    assert not torch.equal(stored["bn1.running_mean"], torch.zeros(64))


def test_images_need_a_network(real_data: Path) -> None:
    with pytest.raises(LasgError, match="holds images as bytes, for networks"):
        factories.problem(task("digits").spec("sgd", data="tiny-imagenet-10b"), real_data)
    assert isinstance(factories.problem(task("digits").spec("sgd")), Regression)
