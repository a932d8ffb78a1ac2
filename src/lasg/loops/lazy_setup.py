"""What lazy loops and optimizers are made from: parameters, stages, the outer optimizer; and what cannot work."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from lasg.core.algorithms import LOCAL_DEFAULT, Outer, Stages, algorithm
from lasg.core.codecs import Dense
from lasg.core.estimators import MomentumCorrection
from lasg.core.optimizers import ClosedFormSGD, Constant, Optimizer, TorchOptimizer, momentum_of
from lasg.errors import LasgError
from lasg.loops.sharing import with_bound
from lasg.loops.user_loss import kind_of
from lasg.problems.flat import FlatView


def check(model: Any, optimizers: Sequence[Any], every: Any, delay: Any, buffers: Any) -> None:
    """Refuse at once what cannot work."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise LasgError(
            f"every must be a number of optimizer steps >= 1, got {every!r}. every=1 averages after each step"
        )
    if delay not in (0, 1):
        raise LasgError(f"delay must be 0, or 1 to send while the next steps are computed, got {delay!r}")
    if buffers not in ("end", "round", "never"):
        raise LasgError(f"buffers must be 'end', 'round' or 'never', got {buffers!r}")
    if not isinstance(model, nn.Module):
        raise LasgError(f"lasg.lazy takes a model, an nn.Module, and its optimizer; the model is {kind_of(model)}")
    if not optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in optimizers):
        raise LasgError("lasg.lazy takes an optimizer of torch.optim, or a list of them")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise LasgError(
            "the model is wrapped in DistributedDataParallel, which would send every gradient as well: pass the module "
            "inside it (model.module), and call that one in the loop"
        )
    names = {type(part).__name__ for part in model.modules()}
    if "FullyShardedDataParallel" in names or any(hasattr(value, "device_mesh") for value in model.parameters()):
        raise LasgError(
            "the model is sharded over ranks (FSDP, or a device mesh), and lasg.lazy needs whole parameters on every "
            "rank: use DistributedDataParallel inside a site, and lasg.lazy between one rank of each site (group=...)"
        )


def named_parameters(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[tuple[str, nn.Parameter]]:
    """Return the optimizers' parameters by the model's names, tied ones once."""
    names = {id(value): name for name, value in model.named_parameters()}
    found: dict[int, tuple[str, nn.Parameter]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for value in group["params"]:
                if id(value) not in names:
                    raise LasgError(
                        "the optimizer has a parameter that is not the model's: make the optimizer from "
                        "model.parameters(), after the model was moved or wrapped"
                    )
                found[id(value)] = (names[id(value)], value)
    return list(found.values())


def choose_stages(name: str, robust: str | None = None) -> tuple[Stages, Outer]:
    """Return the stages that say moves, and the algorithm's outer optimizer."""
    chosen = algorithm(name)
    if chosen.rule.where == "all":
        raise LasgError(
            f"{name} lets ranks go on from models of their own until all average, and a loop whose ranks end one by "
            f"one must average in every round: take {LOCAL_DEFAULT} or diloco, with a larger `every`"
        )
    stages = with_bound(dataclasses.replace(chosen.stages(), inner=None, local_steps=1), robust)
    if stages.rule.name != "always" or chosen.server is not None:
        raise LasgError(
            f"{name} decides by gradients, and lasg.lazy says how far the model moved: take {LOCAL_DEFAULT}, diloco or "
            "sparseloco, or LazyOptimizer for this one"
        )
    if stages.belief == "difference":
        raise LasgError(f"{name} says differences of gradients, and a move is said once: take {LOCAL_DEFAULT}")
    # A move counts once: of a rank that is silent nothing must be added again.
    return dataclasses.replace(stages, belief="residual"), chosen.outer or Outer()


def outer_optimizer(
    theta: Tensor, outer: Outer | tuple[type[torch.optim.Optimizer], Mapping[str, Any]], *, in_place: bool = False
) -> Optimizer:
    """Return what steps on the mean move; with `in_place` it writes into theta."""
    options: Mapping[str, Any]
    if isinstance(outer, Outer):
        if outer.name == "SGD" and not any(outer.options.values()):
            return ClosedFormSGD(theta, Constant(outer.eta))
        kind, options = getattr(torch.optim, outer.name), {"lr": outer.eta, **outer.options}
    else:
        kind, options = outer
    made: Any = kind
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    try:
        return TorchOptimizer(theta, lambda parameters: made(parameters, **plain), in_place=in_place)
    except (TypeError, ValueError) as error:
        raise LasgError(f"the outer optimizer {kind.__name__} refused its options: {error}") from None


def fit_ranks(ranks: int, stages: Stages, robust: str | None) -> Stages:
    """Return the stages with another bound, where one is given; with a single rank nothing travels, nor is rounded."""
    stages = with_bound(stages, robust)
    return stages if ranks > 1 else dataclasses.replace(stages, codec=Dense())


def with_momentum_of(optimizer: torch.optim.Optimizer, stages: Stages) -> Stages:
    """Let the ranks keep the optimizer's momentum, where the algorithm corrects it there: it must not act twice."""
    if not isinstance(stages.estimator, MomentumCorrection):
        return stages
    if type(optimizer) is not torch.optim.SGD or any(group["dampening"] for group in optimizer.param_groups):
        raise LasgError(
            f"this algorithm keeps the momentum on the ranks, and {type(optimizer).__name__} has its own: wrap "
            "torch.optim.SGD(..., momentum=0.9), or take always+qsgd8:512"
        )
    beta = momentum_of(optimizer)
    for group in optimizer.param_groups:
        group["momentum"], group["nesterov"] = 0.0, False
    return dataclasses.replace(stages, estimator=dataclasses.replace(stages.estimator, beta=beta))


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether anybody else sees the gradients of a step."""
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return any((*own, _global_optimizer_pre_hooks, _global_optimizer_post_hooks))


def widen(optimizer: torch.optim.Optimizer, flat: FlatView, theta: Tensor) -> list[nn.Parameter]:
    """Give the optimizer views of theta, in float32, in place of a module's parameters in half the bits."""
    if optimizer.state:
        raise LasgError("the optimizer of a bfloat16 model has stepped before: wrap it first, then load its state dict")
    wide = [nn.Parameter(view) for view in flat.views(theta)]
    by_id = {id(narrow): parameter for narrow, parameter in zip(flat.parameters, wide, strict=True)}
    for group in optimizer.param_groups:
        group["params"] = [by_id.get(id(value), value) for value in group["params"]]
    return wide
