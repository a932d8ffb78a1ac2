"""`lasg.lazy`: any training loop with local steps, on real ranks."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import lasg
from lasg.errors import LasgError
from lasg.transports import encoded, routes
from lasg.transports.links import Links
from tests.loops.test_lazy_optimizer import data, flat, loss_of, module, sgd
from tests.transports.ranks import on_ranks

NESTEROV = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
ALGORITHMS = (
    "lasg-local",
    "lasg-sparse-local",
    "lasg-grid-local",
    "sparseloco",
    "diloco",
    "always+qsgd4:16+ec+residual",
    "always+sign:16+residual",
)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]) -> None:
    """A plain loop: nothing in it knows of lasg."""
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def doubled(rank: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    return [(x.double(), y) for x, y in data(rank, steps)]


def reference(ranks: int, every: int, steps: int, make_outer: Callable[[Any], torch.optim.Optimizer]) -> Tensor:
    """DiLoCo, literally: copies, local steps, the mean move as the outer optimizer's gradient."""
    outer_model = module().double()
    outer = make_outer(outer_model.parameters())
    copies = [copy.deepcopy(outer_model) for _ in range(ranks)]
    inner = [torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.5) for one in copies]
    for begin in range(0, steps, every):
        for rank in range(ranks):
            with torch.no_grad():
                for value, start in zip(copies[rank].parameters(), outer_model.parameters(), strict=True):
                    value.copy_(start)
            train(copies[rank], inner[rank], doubled(rank, steps)[begin : begin + every])
        for i, value in enumerate(outer_model.parameters()):
            moves = [value.detach() - list(one.parameters())[i].detach() for one in copies]
            value.grad = torch.stack(moves).mean(0)
        outer.step()
    return flat(outer_model)


def diloco(every: int, steps: int, options: dict[str, Any], **more: Any) -> Tensor:
    rank, model = dist.get_rank(), module().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    with lasg.lazy(
        model, optimizer, every=every, algorithm="diloco", outer=torch.optim.SGD, outer_options=options, **more
    ):
        train(model, optimizer, doubled(rank, steps))
    return flat(model)


@pytest.mark.parametrize("options", [NESTEROV, {"lr": 1.0}], ids=["diloco", "local sgd"])
def test_dense_messages_equal_a_plain_diloco_loop_over_20_rounds(options: dict[str, Any]) -> None:
    found = on_ranks(2, diloco, 3, 60, options)
    assert torch.equal(found[0], found[1])
    expected = reference(2, 3, 60, lambda values: torch.optim.SGD(values, **options))
    assert (found[0] - expected).abs().max() <= 1e-6 * expected.abs().max()


def test_the_last_round_may_be_shorter() -> None:
    found = on_ranks(2, diloco, 4, 10, {"lr": 1.0})
    assert torch.equal(found[0], found[1])
    expected = reference(2, 4, 10, lambda values: torch.optim.SGD(values, lr=1.0))
    assert (found[0] - expected).abs().max() < 1e-6


def outcome(algorithm: str, make: Any, delay: int) -> tuple[Tensor, Tensor, float, float, int]:
    """On a rank: the model, the same resumed in the middle of a round, its loss before and after, bytes sent."""
    rank = dist.get_rank()
    batches = data(rank, 40)

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = module(norm=True)
        optimizer = make(model.parameters())
        return model, optimizer, lasg.lazy(model, optimizer, every=4, algorithm=algorithm, delay=delay)

    model, optimizer, loop = fresh()
    before = mean_loss(model, batches)
    train(model, optimizer, batches[:18])
    saved = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), loop.state_dict()], saved)
    train(model, optimizer, batches[18:])
    loop.close()
    again, other, resumed = fresh()
    saved.seek(0)
    for target, state in zip((again, other, resumed), torch.load(saved, weights_only=True), strict=True):
        target.load_state_dict(state)
    train(again, other, batches[18:])
    resumed.close()
    return flat(model), flat(again), before, mean_loss(model, batches), int(loop.sent.sum())


def mean_loss(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    with torch.no_grad():
        return float(sum(loss_of(model, x, y) for x, y in batches) / len(batches))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.005)


def outcomes() -> dict[Any, Any]:
    return {(name, delay): outcome(name, adamw, delay) for name in ALGORITHMS for delay in (0, 1)}


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_agree_to_the_bit_learn_and_resume(ranks: int) -> None:
    first, *others = on_ranks(ranks, outcomes)
    for case, (model, resumed, before, after, _) in first.items():
        assert all(torch.equal(model, other[case][0]) for other in others), case
        assert torch.equal(model, resumed), case
        assert after < before, case


def uneven(counts: list[int]) -> tuple[Tensor, int]:
    rank, model = dist.get_rank(), module()
    optimizer = sgd(model)
    with lasg.lazy(model, optimizer, every=2, algorithm="always+topk0.2+residual") as loop:
        train(model, optimizer, data(rank, counts[rank]))
    return flat(model), loop.rounds


def test_a_rank_whose_data_end_first_is_silent_and_all_end_with_one_model() -> None:
    found = on_ranks(3, uneven, [4, 11, 7])
    assert all(torch.equal(found[0][0], other) for other, _ in found)
    assert {rounds for _, rounds in found} == {6}, "those of the longest loader"


def loop_of(every: int = 3, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = module()
    optimizer = sgd(model)
    return model, optimizer, lasg.lazy(model, optimizer, every=every, **options)


def test_a_single_process_with_outer_sgd_is_the_plain_loop() -> None:
    alone, plain = module(), module()
    optimizer = sgd(alone)
    with lasg.lazy(alone, optimizer, every=5, algorithm="lasg-sparse-local"):
        train(alone, optimizer, data(0))
    train(plain, sgd(plain), data(0))
    assert (flat(alone) - flat(plain)).abs().max() < 1e-6


def test_accumulated_gradients_count_once_and_a_skipped_step_not_at_all() -> None:
    model, optimizer, loop = loop_of()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for k, (x, y) in enumerate(data(0, 6)):
        scaler.scale(loss_of(model, x * (float("inf") if k == 3 else 1), y)).backward()
        if k % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert loop.steps == 2, "three steps, one of them skipped"
    loop.close()


def test_frozen_tied_and_several_optimizers_parameters_move_as_they_should() -> None:
    torch.manual_seed(0)
    one, two, three = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
    model = nn.Sequential(one, two, three)
    two.weight = one.weight
    three.bias.requires_grad_(False)
    frozen = three.bias.clone()
    first = torch.optim.SGD(model[:2].parameters(), lr=0.1)
    second = torch.optim.AdamW([three.weight], lr=0.01)
    with lasg.lazy(model, [first, second], every=2) as loop:
        for x, y in data(0, 5):
            loss_of(model, x, y).backward()
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()
    assert loop.rounds == 3
    assert torch.equal(three.bias, frozen)
    assert one.weight is two.weight
    assert loop.flat.p == 36 + 6 + 6 + 18


def half(_: Any = None) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lasg.lazy(model, optimizer, every=2, algorithm="diloco") as loop:
        for x, y in data(dist.get_rank(), 8):
            optimizer.zero_grad()
            loss_of(model, x.to(torch.bfloat16), y).backward()
            optimizer.step()
    assert loop._training.theta.dtype == torch.float32
    return flat(model).float()


def test_bfloat16_weights_are_rounded_from_a_float32_model() -> None:
    first, second = on_ranks(2, half)
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()


def broken() -> tuple[Tensor, list[str]]:
    rank, model = dist.get_rank(), module()
    optimizer = sgd(model, momentum=0.9)
    import warnings

    with warnings.catch_warnings(record=True) as caught, lasg.lazy(model, optimizer, every=2):
        warnings.simplefilter("always")
        for k, (x, y) in enumerate(data(rank, 8)):
            optimizer.zero_grad()
            (loss_of(model, x, y) * (float("nan") if rank == 1 and k == 2 else 1)).backward()
            optimizer.step()
    return flat(model), [str(one.message) for one in caught]


def test_a_rank_whose_model_is_not_finite_is_silent_and_begins_again() -> None:
    (first, none), (second, lines) = on_ranks(2, broken)
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    assert not none
    assert len(lines) == 1
    assert "goes on from the others'" in lines[0]


def statistics(buffers: str) -> tuple[Tensor, Tensor]:
    rank, model = dist.get_rank(), module(norm=True)
    optimizer = sgd(model)
    loop = lasg.lazy(model, optimizer, every=2, buffers=buffers)  # type: ignore[arg-type]
    train(model, optimizer, data(rank, 4))
    in_the_middle = model[1].running_mean.clone()  # type: ignore[operator]
    loop.close()
    return in_the_middle, model[1].running_mean.clone()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("buffers", "middle", "end"), [("round", True, True), ("end", False, True), ("never", False, False)]
)
def test_buffers_are_pooled_when_it_was_said(buffers: str, middle: bool, end: bool) -> None:
    first, second = on_ranks(2, statistics, buffers)
    assert torch.equal(first[0], second[0]) == middle
    assert torch.equal(first[1], second[1]) == end


def disagreeing() -> str:
    model = module()
    with pytest.raises(LasgError) as error:
        lasg.lazy(model, sgd(model), every=3 + dist.get_rank())
    return str(error.value)


def test_different_numbers_of_steps_on_two_ranks_are_refused() -> None:
    for line in on_ranks(2, disagreeing):
        assert "its every is 4, not 3" in line


def test_an_optimizer_that_is_stepped_after_the_end_is_refused() -> None:
    model, optimizer, loop = loop_of()
    train(model, optimizer, data(0, 4))
    loop.close()
    with pytest.raises(LasgError, match=r"after its lazy loop had ended"):
        train(model, optimizer, data(0, 1))


def test_a_new_loop_takes_over_the_optimizer_of_one_that_ended() -> None:
    model = module()
    optimizer = sgd(model)
    for _ in range(2):
        with lasg.lazy(model, optimizer, every=2) as loop:
            train(model, optimizer, data(0, 4))
        assert loop.rounds == 2


def test_a_loop_that_failed_lets_go_of_the_optimizer() -> None:
    model = module()
    optimizer = sgd(model)
    with pytest.raises(ZeroDivisionError), lasg.lazy(model, optimizer):
        raise ZeroDivisionError
    train(model, optimizer, data(0, 2))


def test_a_state_of_another_model_or_loop_is_refused() -> None:
    model, optimizer, loop = loop_of()
    train(model, optimizer, data(0, 4))
    state = loop.state_dict()
    with pytest.raises(LasgError, match="load the model's state dict"):
        loop_of()[2].load_state_dict(state)
    with pytest.raises(LasgError, match="every differ"):
        loop_of(every=4)[2].load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"every": 0}, "every must be a number of optimizer steps >= 1, got 0"),
        ({"every": 2.5}, "every must be a number of optimizer steps >= 1, got 2.5"),
        ({"delay": 2}, "delay must be 0, or 1"),
        ({"buffers": "sometimes"}, "buffers must be 'end', 'round' or 'never'"),
        ({"algorithm": "lasg-wk2"}, "lasg-wk2 decides by gradients"),
        ({"algorithm": "ef21"}, "ef21 says differences of gradients"),
        ({"algorithm": "dilico"}, "Did you mean diloco"),
        ({"outer_options": {"lr": 1.0}}, "name its class too"),
        ({"outer": torch.optim.SGD, "outer_options": {"rate": 1.0}}, "the outer optimizer SGD refused its options"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(LasgError) as error:
        loop_of(**options)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_models_that_do_not_fit_are_refused_in_one_line() -> None:
    model = module()
    with pytest.raises(LasgError, match="a parameter that is not the model's"):
        lasg.lazy(module(), sgd(model))
    with pytest.raises(LasgError, match="the model is function"):
        lasg.lazy(lambda x: x, sgd(model))  # type: ignore[arg-type]
    with pytest.raises(LasgError, match=r"an optimizer of torch\.optim"):
        lasg.lazy(model, [])


def wrapped() -> str:
    model = nn.parallel.DistributedDataParallel(module())
    with pytest.raises(LasgError) as error:
        lasg.lazy(model, sgd(model))
    return str(error.value)


def test_a_model_in_ddp_is_refused() -> None:
    assert "pass the module inside it" in on_ranks(2, wrapped)[0]


def channels(at_once: int) -> tuple[Tensor, set[int]]:
    """The model after rounds whose messages have unlike lengths, and the channels that they took."""
    used: set[int] = set()
    start = Links.start

    def noted(links: Links, sends: Any, what: str, channel: int = 0, extra: float = 0.0) -> Any:
        used.update({channel} if what == "uploads" else ())
        return start(links, sends, what, channel, extra)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoded, "HOP", 2 * at_once)
        patch.setattr(Links, "start", noted)
        model = module()
        with lasg.lazy(model, sgd(model), every=2, algorithm="always+topk0.2+ec+residual") as loop:
            train(model, loop.optimizers[0], data(dist.get_rank(), 12))
    return flat(model), used


def settings_of_channels() -> list[tuple[Tensor, set[int]]]:
    return [channels(at_once) for at_once in AT_ONCE]


AT_ONCE = (0, 24, 25, 26, 27, 1 << 20)
"""No message is so short, some are, all are."""


def test_short_messages_leave_at_once_and_long_ones_when_all_lengths_are_known() -> None:
    found = on_ranks(3, settings_of_channels)
    for model, _ in (case for rank in found for case in rank):
        assert torch.equal(model, found[0][0][0])
    used = [set().union(*(rank[i][1] for rank in found)) for i in range(len(AT_ONCE))]
    assert routes.AT_ONCE not in used[0]
    assert used[-1] == {routes.AT_ONCE}
    assert any(routes.AT_ONCE in some and len(some) > 1 for some in used)
