"""Modules, datasets and faults that the first tests of networks left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import lasg
from lasg.core.algorithms import Stages, algorithm
from lasg.core.messages import News, Uploads
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import WK1
from lasg.core.server import Laziness, Server
from lasg.core.training import Training
from lasg.data.loaders import load
from lasg.errors import Faulty, LasgError
from lasg.problems.models import MODELS, load_weights, model, read_weights
from lasg.problems.module import ModuleProblem
from lasg.runs import store
from lasg.runs.status import Status
from lasg.transports.local import simulate
from tests.runs.samples import stop_after

N = 60
SHARDS = np.split(np.arange(N), [10, 25, 40])


def inputs() -> Tensor:
    return torch.randn(N, 6, generator=torch.Generator().manual_seed(0))


def labels() -> Tensor:
    return torch.randint(0, 3, (N,), generator=torch.Generator().manual_seed(1))


def normed(**more: Any) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, **more), nn.Tanh(), nn.Linear(8, 3))


def linear(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(6, 3)


def settings(more: dict[str, Any]) -> dict[str, Any]:
    return {"batch": 0.4, "seed": 3, "dtype": "float64", **more}


def problem(module: nn.Module, dataset: Any = None, **more: Any) -> ModuleProblem:
    loss = more.pop("loss", cross_entropy)
    more = {"how": "loop", **more}  # the first vmap of a process takes seconds
    return ModuleProblem(module, loss, dataset or (inputs(), labels()), SHARDS, **settings(more))


def simulation(of: ModuleProblem, name: str = "sgd", rounds: int = 0) -> Training:
    chosen = algorithm(name)
    found = simulate(
        of,
        ClosedFormSGD(of.start(), Constant(0.1)),
        rule=chosen.rule,
        codec=chosen.codec(8, None),
        laziness=Laziness(workers=of.workers, D=5),
        local_steps=chosen.local_steps(2),
        seed=3,
    )
    for _ in range(rounds):
        found.step()
    return found


class Broken(ModuleProblem):
    """Worker 1's inputs are NaN in the iterations `when`."""

    when: frozenset[int] = frozenset()

    def _minibatch(self, iteration: int, m: int, rows: npt.NDArray[np.integer[Any]]) -> tuple[Any, Any]:
        x, y = super()._minibatch(iteration, m, rows)
        return (x * float("nan") if m == 1 and iteration in self.when else x), y


def broken(module: nn.Module, when: range) -> Broken:
    found = Broken(module, cross_entropy, (inputs(), labels()), SHARDS, **settings({"how": "loop"}))
    found.when = frozenset(when)
    return found


# -- weights -------------------------------------------------------------------------------------------------------


def test_a_stored_model_keeps_the_shape_of_numbers_without_dimensions(tmp_path: Path) -> None:
    of = problem(normed())
    store.write_model(tmp_path, of.export(of.start()))
    assert read_weights(tmp_path / store.MODEL)["1.num_batches_tracked"].shape == ()


def test_a_resnet_starts_from_the_model_that_a_run_stored(tmp_path: Path) -> None:
    """This is what `lasg pretrain` makes, and `lasg run tiny-imagenet` starts from."""
    made = model("resnet18", (3, 64, 64), 10, 0)
    store.write_model(tmp_path, {name: value.detach() for name, value in made.state_dict().items()})
    assert load_weights(made, read_weights(tmp_path / store.MODEL), MODELS["resnet18"].head) == []


# -- faults and BatchNorm ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "lasg-wk2", "lasg-pse", "local-sgd"])
def test_a_broken_minibatch_leaves_no_trace_in_batch_norms_statistics(name: str) -> None:
    found = simulation(broken(normed(), range(3)), name)
    rounds = [found.step() for _ in range(3)]
    assert rounds[0].broken is not None
    assert np.isfinite(found.loss())


def test_a_run_survives_one_broken_gradient_of_a_network_with_batch_norm(tmp_path: Path) -> None:
    run = lasg.train(broken(normed(), range(3, 4)), "sgd", folder=tmp_path / "run", iterations=12, evaluate=4)
    assert run.status == "done"
    assert run.trace["broken"].tolist() == [[3, 1]]


def test_all_broken_gradients_are_reported_before_the_run_gives_up(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    with pytest.raises(Faulty):
        lasg.train(
            broken(linear(), range(99)),
            "sgd",
            folder=tmp_path / "run",
            iterations=20,
            patience=3,
            report=lambda status: reported.extend(status.broken),
        )
    assert reported == [(0, 1), (1, 1), (2, 1)]


def test_wk1_makes_up_for_a_forced_upload_that_was_missed_right_after_another_upload() -> None:
    stages = Stages(rule=WK1)
    server = Server(ClosedFormSGD(np.zeros(2), Constant(0.1)), stages, Laziness(workers=2, D=5))
    for _ in range(5):
        server.open()
        server.close(Uploads(np.array([True, True]), 2), News(np.ones(2)))
    assert server.open().must_upload.all()
    assert not server.open().by_rule
    server.close(
        Uploads(np.array([True, False]), 1), News(np.ones(2))
    )  # a new snapshot, and worker 1's gradient was broken
    assert np.array_equal(server.open().must_upload, [False, True])


# -- what BatchNorm and other buffers remember ---------------------------------------------------------------------


def test_pooled_variances_stay_positive_where_means_are_large() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6, momentum=None), linear())
    of = problem(module, (0.01 * inputs() + 100, labels()), dtype="float32")
    found = simulation(of, rounds=20)
    variance = found.measurable.export(found.theta)["0.running_var"]
    assert torch.allclose(variance, torch.full((6,), 1e-4), rtol=1)
    assert np.isfinite(found.loss())


def test_pooling_leaves_a_buffer_that_all_workers_share_as_it_is() -> None:
    module = nn.Sequential(linear())
    positions = torch.arange(200, dtype=torch.float32) / 7
    module.register_buffer("positions", positions)
    shards = np.array_split(np.arange(N), 7)
    of = ModuleProblem(module, cross_entropy, (inputs(), labels()), shards, batch=0.4)
    assert torch.equal(of.export(of.start())["positions"], positions)


class Centred(nn.Module):
    """Subtracts a running mean that it updates first: training sees the buffer."""

    mean: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.last = in_place, linear()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            new = 0.9 * self.mean + 0.1 * x.mean(0).detach()
            if self.in_place:
                self.mean.copy_(new)
            else:
                self.mean = new
        result: Tensor = self.last(x - self.mean)
        return result


@pytest.mark.parametrize("in_place", [True, False])
def test_gradient_and_probe_start_from_the_same_buffers(in_place: bool) -> None:
    of = problem(Centred(in_place))
    theta = of.start()
    now, probe = of.gradients(0, [theta, theta], None)
    assert torch.equal(now, probe)


@pytest.mark.parametrize("in_place", [True, False])
def test_workers_and_runs_keep_buffers_apart_however_a_module_writes_them(in_place: bool) -> None:
    of = problem(Centred(in_place))
    (all_,) = of.fresh().gradients(0, [of.start()], None)
    (alone,) = of.fresh().gradients(0, [of.start()], np.array([2]))
    assert torch.equal(all_[2], alone[0])


def test_the_model_is_only_moved_by_the_server() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Embedding(10, 4, max_norm=0.1), nn.Flatten(), nn.Linear(24, 3))
    with pytest.raises(LasgError, match="writes into its own parameters"):
        problem(module, (torch.randint(0, 10, (N, 6)), labels()), how="loop")


def test_cumulative_batch_norm_resumes_bit_for_bit() -> None:
    whole = simulation(problem(normed(momentum=None)), "lasg-wk2", 8)
    half = simulation(problem(normed(momentum=None)), "lasg-wk2", 4)
    again = simulation(problem(normed(momentum=None)), "lasg-wk2")
    again.restore(half.state())
    for _ in range(4):
        again.step()
    assert again.loss() == whole.loss()


# -- datasets ------------------------------------------------------------------------------------------------------


class Noisy:
    """Draws from torch's generator, as torchvision's random transforms do."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return inputs()[index] + torch.randn(6), labels()[index]


def test_a_dataset_that_draws_random_numbers_gives_the_same_run_again() -> None:
    of = problem(linear(), Noisy(), how="loop")
    found = []
    for state in (5, 6):
        torch.manual_seed(state)
        found.append(of.gradients(0, [of.start()], None)[0])
    assert torch.equal(*found)


class Named:
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        return {"x": inputs()[index]}, labels()[index]


class OfNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = linear()

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        result: Tensor = self.last(batch["x"])
        return result


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inputs_by_name_are_in_the_runs_dtype_too(dtype: str) -> None:
    named, plain = problem(OfNamed(), Named(), dtype=dtype), problem(linear(), dtype=dtype)
    (one,), (other,) = (of.gradients(0, [of.start()], None) for of in (named, plain))
    assert torch.equal(one, other)


def test_a_regression_without_a_metric_has_no_accuracy() -> None:
    torch.manual_seed(1)
    x = inputs()
    of = problem(nn.Linear(6, 1), (x, 2 * x[:, :1]), loss=mse_loss, test=(x, 2 * x[:, :1]), how="loop")
    assert of.accuracy(of.start()) is None


def test_a_loss_of_many_numbers_is_refused_at_once() -> None:
    with pytest.raises(LasgError, match="one number"):
        problem(linear(), loss=nn.CrossEntropyLoss(reduction="none"))


def test_images_that_are_not_square_are_refused_whatever_their_area(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.setenv("LASG_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "images"
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("a\nb\n")
    (root / "val" / "val_annotations.txt").write_text("")
    for name in "ab":
        (root / "train" / name / "images").mkdir(parents=True)
        Image.new("RGB", (16, 4)).save(root / "train" / name / "images" / "0.JPEG")
    with pytest.raises(LasgError, match="square"):
        load(f"images:{root}")  # 16 x 4 pixels are as many as 8 x 8


# -- lasg.train ----------------------------------------------------------------------------------------------------


def test_a_run_that_is_done_is_read_and_not_trained_again(tmp_path: Path) -> None:
    more: dict[str, Any] = {"folder": tmp_path / "run", "iterations": 5}
    lasg.train(problem(linear()), "sgd", **more)
    reports: list[Status] = []
    lasg.train(problem(linear()), "sgd", report=reports.append, **more)
    assert [status.stored for status in reports] == [True]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"batch": 0.2},
        {"batch_norm": "frozen"},
        {"dataset": (2 * inputs(), labels())},
    ],
    ids=["seed", "batch", "batch norm", "data"],
)
def test_a_stopped_run_does_not_go_on_with_another_problem(tmp_path: Path, change: dict[str, Any]) -> None:
    more: dict[str, Any] = {"folder": tmp_path / "run", "iterations": 20, "evaluate": 5}
    with pytest.raises(KeyboardInterrupt):
        lasg.train(problem(normed()), "sgd", report=stop_after(8, error=KeyboardInterrupt), **more)
    with pytest.raises(LasgError, match="another problem or of other settings"):
        lasg.train(problem(normed(), **change), "sgd", **more)


def test_the_stored_seed_is_the_problems(tmp_path: Path) -> None:
    run = lasg.train(problem(linear(), seed=7), "sgd", folder=tmp_path / "run", iterations=2)
    assert run.spec.seed == 7


@pytest.mark.usefixtures("eager")
def test_a_module_with_dropout_and_batch_norm_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def of() -> ModuleProblem:
        torch.manual_seed(1)
        return problem(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)))

    more: dict[str, Any] = {"iterations": 20, "evaluate": 5, "optimizer": "Adam", "eta": 0.01, "clip": 1.0}
    whole = lasg.train(of(), "laqsg-wk1", folder=tmp_path / "whole", **more)
    with pytest.raises(KeyboardInterrupt):
        lasg.train(of(), "laqsg-wk1", folder=tmp_path / "parts", report=stop_after(8, error=KeyboardInterrupt), **more)
    parts = lasg.train(of(), "laqsg-wk1", folder=tmp_path / "parts", **more)
    assert np.array_equal(whole.trace["loss"], parts.trace["loss"])


def test_runs_of_ones_own_over_seeds_and_algorithms_make_one_report(tmp_path: Path) -> None:
    from lasg.report import page

    for seed in (0, 1):
        for name in ("sgd", "lasg-wk2"):
            lasg.train(
                problem(normed(), seed=seed), name, folder=tmp_path / f"{name}-{seed}", iterations=10, evaluate=5
            )
    runs = store.read_runs(tmp_path)
    assert len(runs) == 4
    page.write(tmp_path / "report.html", runs)
    assert "lasg-wk2" in (tmp_path / "report.html").read_text()
