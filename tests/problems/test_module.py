"""Any torch module as a problem: flat views, buffers, dropout, devices, precision, the ways to compute gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils.data import TensorDataset

from lasg.core.algorithms import ALGORITHMS, algorithm
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.errors import LasgError
from lasg.problems.flat import FlatView
from lasg.problems.image_transform import ImageTransform
from lasg.problems.models import CNN, MODELS, ResNet18, load_weights, model
from lasg.problems.module import ModuleProblem
from lasg.transports.local import simulate

N, M = 60, 4


def data(seed: int = 0, shape: tuple[int, ...] = (6,), n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=generator)
    return x, torch.randint(0, 3, (n,), generator=generator)


def shards(sizes: Sequence[int] = (10, 15, 15, 20)) -> list[npt.NDArray[np.int64]]:
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def normed() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def problem(module: nn.Module, **more: Any) -> ModuleProblem:
    settings: dict[str, Any] = {"batch": 0.4, "seed": 3, "dtype": "float64", **more}
    return ModuleProblem(module, cross_entropy, settings.pop("dataset", data()), shards(), **settings)


def simulated(of: ModuleProblem, name: str, rounds: int, **more: Any) -> Training:
    chosen = algorithm(name)
    settings: dict[str, Any] = {"seed": 3, "local_steps": chosen.local_steps(2), **more}
    eta = settings.pop("eta", 0.1)
    laziness = Laziness(workers=of.workers, D=5)
    optimizer = ClosedFormSGD(of.start(), Constant(eta))
    simulation = simulate(of, optimizer, rule=chosen.rule, codec=chosen.codec(8, None), laziness=laziness, **settings)
    for _ in range(rounds):
        simulation.step()
    return simulation


# -- the flat view ---------------------------------------------------------------------------------------------


def test_parameters_become_views_of_the_flat_vector_without_a_copy() -> None:
    module = mlp()
    view = FlatView(module.named_parameters())
    flat = view.gather()
    view.point_at(flat)
    flat.zero_()
    assert all(not parameter.any() for parameter in module.parameters())
    assert {parameter.untyped_storage().data_ptr() for parameter in module.parameters()} == {
        flat.untyped_storage().data_ptr()
    }


def test_a_flat_view_keeps_values_and_the_memory_format() -> None:
    module = CNN().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    kept = {name: value.detach().clone() for name, value in module.named_parameters()}
    view = FlatView(module.named_parameters())
    strides = [parameter.stride() for parameter in view.parameters]
    view.point_at(view.gather())
    assert [parameter.stride() for parameter in view.parameters] == strides
    for name, value in module.named_parameters():
        torch.testing.assert_close(value.detach(), kept[name], rtol=0, atol=0)


def test_frozen_parameters_have_no_place_in_the_vector_and_are_left_alone() -> None:
    module = mlp()
    first = module.get_submodule("0")
    first.requires_grad_(False)
    before = first.get_parameter("weight").clone()
    of = problem(module, dtype="float32")
    assert of.p == 8 * 3 + 3
    simulation = simulated(of, "lasg-wk2", 6)
    exported = of.export(simulation.theta)
    torch.testing.assert_close(exported["0.weight"], before, rtol=0, atol=0)
    assert not torch.equal(exported["2.weight"], module.get_parameter("2.weight"))


def test_the_users_module_is_not_touched() -> None:
    module = normed()
    kept = copy.deepcopy(module.state_dict())
    simulated(problem(module), "lasg-wk2", 4)
    for name, value in module.state_dict().items():
        assert torch.equal(value, kept[name]), name


def test_a_module_with_nothing_to_learn_is_refused() -> None:
    with pytest.raises(LasgError, match="no trainable parameter"):
        problem(nn.ReLU())


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.b(self.a(x).tanh()))
            return result

    of = problem(Tied())
    assert of.p == 36 + 6 + 6 + 18 + 3
    exported = of.export(simulated(of, "sgd", 3).theta)
    assert torch.equal(exported["a.weight"], exported["b.weight"])


# -- gradients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_contributions_are_the_weighted_gradients_of_the_minibatches(how: Any) -> None:
    module, (x, y) = mlp().double(), data()
    of = problem(module, how=how, lam=0.1)
    theta = of.start()
    (found,) = of.gradients(7, [theta], None)
    drawn = np.split(of.order[of.batches.draw_all(7)], np.cumsum(of.batch)[:-1])
    for m, rows in enumerate(drawn):
        loss = cross_entropy(module(x[rows].double()), y[rows])
        parts = torch.autograd.grad(loss, list(module.parameters()))
        expected = of.weights[m] * torch.cat([part.reshape(-1) for part in parts]) + 0.1 / M * theta
        torch.testing.assert_close(found[m], expected)


@pytest.mark.parametrize("rows", [None, np.array([1, 2]), np.array([3])])
def test_vmap_and_loop_agree_at_shared_and_at_own_points(rows: npt.NDArray[np.int64] | None) -> None:
    loop, vmap = (problem(mlp(), how=how) for how in ("loop", "vmap"))
    n = M if rows is None else len(rows)
    theta = loop.start()
    own = [theta + 0.1 * (i + 1) for i in range(n)]
    for a, b in zip(loop.gradients(2, [theta, own], rows), vmap.gradients(2, [theta, own], rows), strict=True):
        torch.testing.assert_close(a, b)


def test_some_workers_give_what_they_give_among_all() -> None:
    of = problem(mlp(), how="loop")
    theta = of.start()
    everybody = of.gradients(4, [theta], None)[0]
    some = of.gradients(4, [theta], np.array([1, 3]))[0]
    torch.testing.assert_close(some, everybody[[1, 3]], rtol=0, atol=0)


def test_the_way_is_chosen_by_the_model() -> None:
    equal = [np.arange(m, N, M) for m in range(M)]
    small = ModuleProblem(mlp(), cross_entropy, data(), equal, batch=0.4)
    assert small.how == "vmap"
    large = ModuleProblem(nn.Linear(6, 20_000), cross_entropy, data(), equal, batch=0.4)
    assert large.how == "loop"
    dropped = nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3))
    assert ModuleProblem(dropped, cross_entropy, data(), equal, batch=0.4).how == "loop"
    assert ModuleProblem(normed(), cross_entropy, data(), equal, batch=0.4).how == "loop"


def test_a_parameter_that_the_loss_does_not_use_has_gradient_zero() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.used(x)
            return result

    of = problem(Unused(), how="loop")
    (found,) = of.gradients(0, [of.start()], None)
    assert found[:, :21].any()
    assert not found[:, 21:].any()


def test_a_map_style_dataset_and_a_pair_of_tensors_are_the_same_problem() -> None:
    x, y = data()
    pair, mapped = problem(mlp()), problem(mlp(), dataset=TensorDataset(x, y))
    theta = pair.start()
    torch.testing.assert_close(pair.gradients(1, [theta], None)[0], mapped.gradients(1, [theta], None)[0])
    assert pair.loss(theta) == pytest.approx(mapped.loss(theta))


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    with pytest.raises(LasgError, match="must be one number"):
        ModuleProblem(mlp(), lambda o, t: cross_entropy(o, t, reduction="none"), data(), shards(), batch=0.4)


# -- BatchNorm and dropout ---------------------------------------------------------------------------------------


def test_a_probe_does_not_change_batch_norm_statistics() -> None:
    plain, probed = problem(normed()), problem(normed())
    theta = plain.start()
    plain.gradients(0, [theta], None)
    probed.gradients(0, [theta, theta + 1.0], None)
    for a, b in zip(plain.state().values(), probed.state().values(), strict=True):
        assert torch.equal(a, b)
    assert int(plain.buffers.own[-1][0]) == 1  # type: ignore[union-attr]  # batches seen


def test_a_probe_sees_the_same_batch_norm_state_as_the_gradient_it_is_compared_with() -> None:
    of = problem(normed())
    theta = of.start()
    for iteration in range(3):
        here, there = of.gradients(iteration, [theta, theta.clone()], None)
        assert torch.equal(here, there)


def test_workers_keep_their_own_statistics() -> None:
    of = problem(normed())
    of.gradients(0, [of.start()], np.array([0, 2]))
    seen = of.state()["2"]  # num_batches_tracked
    assert seen.tolist() == [1, 0, 1, 0]
    means = of.state()["0"]
    assert not torch.equal(means[0], means[2])
    assert not means[1].any()


def test_two_runs_on_one_problem_do_not_share_statistics() -> None:
    shared = problem(normed())
    first = simulated(shared, "sgd", 4)
    second = simulated(shared, "sgd", 4)
    alone = simulated(problem(normed()), "sgd", 4)
    assert torch.equal(first.theta, alone.theta)
    assert torch.equal(second.theta, alone.theta)
    assert first.loss() == second.loss() == alone.loss()


def test_evaluation_pools_the_statistics_as_if_all_samples_were_one_batch() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6, momentum=1.0), nn.Linear(6, 3))
    x, y = data()
    # Whole shards as batches, in sizes large enough that n / (n - 1) is the only difference.
    of = ModuleProblem(module, cross_entropy, (x, y), shards(), batch=1.0, dtype="float64")
    theta = of.start()
    of.gradients(0, [theta], None)
    with of.evaluating(theta) as evaluated:
        norm = evaluated.get_submodule("0")
        wide = x.double()
        torch.testing.assert_close(norm.get_buffer("running_mean"), wide.mean(0))
        torch.testing.assert_close(norm.get_buffer("running_var"), wide.var(0), rtol=0.1, atol=0)


def test_frozen_batch_norm_uses_and_keeps_the_starts_statistics() -> None:
    module = normed()
    module(data()[0])
    kept = module.state_dict()["1.running_mean"].clone()
    of = problem(module, batch_norm="frozen", dtype="float32")
    assert of.buffers is None
    exported = of.export(simulated(of, "lasg-wk1", 4).theta)
    assert torch.equal(exported["1.running_mean"], kept)


class Dropped(nn.Module):
    """Dropout that no layer announces."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(dropout(self.a(x), 0.5, self.training))
        return result


def test_dropout_uses_the_same_mask_at_the_probe() -> None:
    of = problem(Dropped())
    theta = of.start()
    here, there = of.gradients(5, [theta, theta.clone()], None)
    assert torch.equal(here, there)


def test_dropout_masks_differ_between_rounds_and_workers() -> None:
    x = torch.ones(N, 6)
    of = problem(Dropped(), dataset=(x, torch.zeros(N, dtype=torch.int64)), batch=1.0)
    theta = of.start()
    first, second = of.gradients(0, [theta], None)[0], of.gradients(1, [theta], None)[0]
    assert not torch.equal(first, second)
    assert not torch.equal(first[1] / of.weights[1], first[2] / of.weights[2])


def test_torchs_own_generator_is_left_as_it_was() -> None:
    module = Dropped()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for how in ("auto", "loop"):
        of = problem(module, how=how)
        of.gradients(0, [of.start()], None)
        of.loss(of.start())
    assert torch.equal(torch.rand(3), expected)


def test_a_silent_worker_stays_silent_with_dropout_while_the_model_stands_still() -> None:
    """With a mask of its own at each evaluation the rule would measure noise, and everybody would upload."""
    of = problem(Dropped(), batch=0.2)
    simulation = simulated(of, "lasg-wk2", 1, eta=1e-12)
    for _ in range(3):
        left = simulation.step().left
        assert left is not None
        assert (left < 1e-12).all()


# -- with every algorithm ----------------------------------------------------------------------------------------

RUNNABLE = [name for name, row in ALGORITHMS.items() if row.rule.name != "ps"]


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("make", [mlp, normed, Dropped], ids=["mlp", "batch-norm", "dropout"])
def test_every_algorithm_trains_every_module_and_resumes_bit_for_bit(name: str, make: Any) -> None:
    whole = simulated(problem(make(), dtype="float32"), name, 6)
    resumed = simulated(problem(make(), dtype="float32"), name, 0)
    resumed.restore(whole.state())
    for _ in range(6):
        one, other = whole.step(), resumed.step()
        np.testing.assert_array_equal(one.uploaded, other.uploaded)
    assert torch.equal(whole.theta, resumed.theta)
    assert whole.ledger == resumed.ledger
    assert whole.loss() == resumed.loss() < whole.measurable.loss(whole.measurable.start())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["lag-wk", "lasg-wk1", "lasg-wk2", "lasg-pse", "laqsg-wk2", "local-sgd"])
def test_long_vectors_row_by_row_give_what_short_ones_give_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lasg.core import arrays, workers

    at_once = simulated(problem(mlp()), name, 10)
    monkeypatch.setattr(workers, "AT_ONCE", 1)
    monkeypatch.setattr(arrays, "AT_ONCE", 1)
    row_by_row = simulated(problem(mlp()), name, 10)
    assert at_once.ledger == row_by_row.ledger
    torch.testing.assert_close(at_once.theta, row_by_row.theta, rtol=1e-12, atol=1e-14)


def test_lasg_ps_is_refused_for_networks_with_what_to_take_instead() -> None:
    with pytest.raises(LasgError, match="lasg-pse estimates"):
        problem(mlp()).smoothness()


# -- precision and devices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_computes_nearly_the_same_gradients(precision: Any) -> None:
    exact, mixed = problem(mlp(), dtype="float32", how="loop"), problem(mlp(), dtype="float32", autocast=precision)
    theta = exact.start()
    a, b = exact.gradients(0, [theta], None)[0], mixed.gradients(0, [theta], None)[0]
    assert b.dtype == torch.float32
    assert 0 < float((a - b).norm() / a.norm()) < 0.05


@pytest.mark.parametrize("name", ["lasg-wk2", "laqsg-wk1", "lasg-pse"])
def test_mixed_precision_composes_with_rules_and_codecs(name: str) -> None:
    of = problem(normed(), dtype="float32", autocast="bfloat16")
    assert simulated(of, name, 8).loss() < of.loss(of.start())


def test_nothing_hard_codes_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device has no data: whatever is made on the CPU on the way would not mix with it."""
    monkeypatch.setattr("lasg.problems.module._device", torch.device)
    monkeypatch.setattr(ModuleProblem, "_seed", lambda self, key: None)  # it has no generator either
    monkeypatch.setattr(ModuleProblem, "_own_randomness", lambda self: nullcontext())
    of = problem(mlp(), device="meta", dtype="float32", how="loop")
    assert of.start().device.type == "meta"
    (found,) = of.gradients(0, [of.start()], None)
    assert found.device.type == "meta"
    assert found.shape == (M, of.p)


def test_a_device_without_double_precision_adds_up_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """mps has no float64; here the CPU is treated as if it had none."""
    from lasg.core import arrays

    plain = simulated(problem(mlp(), dtype="float32"), "laqsg-wk2", 6, clip=0.5)
    monkeypatch.setattr(arrays, "SINGLE_ONLY", {"cpu"})
    moved = simulated(problem(mlp(), dtype="float32"), "laqsg-wk2", 6, clip=0.5)
    torch.testing.assert_close(plain.theta, moved.theta)


@pytest.mark.parametrize("device", ["cuda", "mps", "meta", "nonsense"])
def test_a_device_that_is_not_here_is_refused_in_one_line(device: str) -> None:
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if here.get(device):
        pytest.skip(f"{device} is here")
    with pytest.raises(LasgError, match=f"device '{device}' cannot be used here") as error:
        problem(mlp(), device=device)
    assert "\n" not in str(error.value)


# -- models --------------------------------------------------------------------------------------------------------


def test_the_cnn_has_the_papers_number_of_parameters() -> None:
    assert sum(parameter.numel() for parameter in CNN().parameters()) == 431_080


def test_pooling_before_the_elu_changes_nothing() -> None:
    torch.manual_seed(0)
    net = CNN().double()
    layers = list(net)
    x = torch.randn(5, 1, 28, 28, dtype=torch.float64)
    printed = nn.Sequential(layers[0], layers[2], layers[1], layers[3], layers[5], layers[4], *layers[6:])
    assert torch.equal(net(x), printed(x))


def test_resnet18_has_torchvisions_names_and_shapes() -> None:
    state = ResNet18().state_dict()
    assert len(state) == 122
    assert sum(value.numel() for value in ResNet18().parameters()) == 11_689_512
    expected = {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.num_batches_tracked": (),
        "layer4.1.bn2.bias": (512,),
        "fc.weight": (1000, 512),
    }
    assert {name: tuple(state[name].shape) for name in expected} == expected
    assert not [name for name in state if name.startswith("layer1.0.downsample")]


def test_weights_load_by_name_and_leave_a_head_for_other_classes_alone() -> None:
    source, target = ResNet18(classes=7), ResNet18(classes=5)
    before = target.fc.weight.clone()
    assert load_weights(target, source.state_dict(), MODELS["resnet18"].head) == ["fc.weight", "fc.bias"]
    assert torch.equal(target.layer3[0].conv1.weight, source.layer3[0].conv1.weight)  # type: ignore[union-attr, arg-type]
    assert torch.equal(target.fc.weight, before)
    same = ResNet18(classes=7)
    assert load_weights(same, source.state_dict(), MODELS["resnet18"].head) == []
    assert torch.equal(same.fc.weight, source.fc.weight)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("conv1.weight"), "lacks 'conv1.weight'"),
        (lambda state: state.update(extra=torch.zeros(1)), "'extra', which the model has not"),
        (lambda state: state.update({"conv1.weight": torch.zeros(64, 1, 7, 7)}), "conv1.weight is"),
    ],
)
def test_weights_of_another_model_are_refused(change: Any, words: str) -> None:
    state = dict(ResNet18().state_dict())
    change(state)
    with pytest.raises(LasgError, match=words):
        load_weights(ResNet18(), state, MODELS["resnet18"].head)


def test_a_models_start_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = model("cnn", (1, 28, 28), 10, 4).state_dict()
    torch.manual_seed(2)
    again, other = model("cnn", (1, 28, 28), 10, 4).state_dict(), model("cnn", (1, 28, 28), 10, 5).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["0.weight"], other["0.weight"])


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [("cnm", (1, 28, 28), "Did you mean cnn"), ("cnn", (64,), "takes images"), ("cnn", (1, 8, 8), "16 x 16 or more")],
)
def test_a_model_that_cannot_be_made_is_refused(name: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(LasgError, match=words):
        model(name, shape, 10, 0)


# -- images --------------------------------------------------------------------------------------------------------


def key(value: int) -> Any:
    return np.uint64(value)


def test_bytes_are_scaled_and_normalised_by_channel() -> None:
    x = torch.full((2, 3, 4, 4), 255, dtype=torch.uint8)
    found = ImageTransform((0.5, 0.25, 0.0), (0.5, 0.25, 1.0)).test(x)
    torch.testing.assert_close(found[0, :, 0, 0], torch.tensor([1.0, 3.0, 1.0]))


def test_augmentation_shifts_and_flips_and_is_the_same_for_the_same_key() -> None:
    x = torch.rand(64, 3, 8, 8)
    images = ImageTransform(shift=2, flip=True)
    one, again, other = images.train(x, key(1)), images.train(x, key(1)), images.train(x, key(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert one.shape == x.shape
    centre = x[:, :, 2:6, 2:6]
    inside = [
        any(torch.equal(part, c) for part in _windows(image) for c in (want, want.flip(-1)))
        for image, want in zip(one, centre, strict=True)
    ]
    assert all(inside)  # whatever the shift by up to 2, the middle is still somewhere


def _windows(image: Tensor) -> list[Tensor]:
    return [image[:, top : top + 4, left : left + 4] for top in range(5) for left in range(5)]


def test_without_augmentation_training_images_are_test_images() -> None:
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(ImageTransform().train(x, key(1)), ImageTransform().test(x))
