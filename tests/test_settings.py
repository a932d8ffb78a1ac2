"""One vocabulary of settings: specs, LazyOptimizer and Flower have the same names, with the same defaults."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import lasg
from lasg.core.algorithms import DEFAULT, Stages, choose_stages
from lasg.core.server import Laziness
from lasg.core.settings import Settings
from lasg.core.training import PATIENCE
from lasg.errors import LasgError
from lasg.flower.settings import ROBUST
from lasg.flower.settings import Settings as FlowerSettings
from lasg.runs.spec import Spec, from_toml

SHARED = {one.name: one.default for one in fields(Settings)}


def test_a_spec_has_every_shared_setting_with_its_default() -> None:
    spec = lasg.Spec(task="t", algorithm="sgd", data="digits")
    given = {"algorithm", "c"}  # a spec names its algorithm; on the paper's data it is as lazy as the paper
    assert {name: getattr(spec, name) for name in SHARED if name not in given} == {
        name: value for name, value in SHARED.items() if name not in given
    }


def test_the_lazy_optimizer_has_the_same_names_and_defaults() -> None:
    parameters = inspect.signature(lasg.LazyOptimizer.__init__).parameters
    same = SHARED.keys() & parameters.keys() - {"algorithm", "patience"}
    assert same == {"rho", "c", "guard", "D", "window", "seed", "clip", "robust"}
    assert {name: parameters[name].default for name in same} == {name: SHARED[name] for name in same}
    assert parameters["patience"].default == PATIENCE, "what an absent patience means"


def test_flower_has_the_same_names_and_defaults() -> None:
    settings = FlowerSettings(workers=2)
    for name in ("eta", "D", "window", "seed"):
        assert getattr(settings, name) == SHARED[name], name
    bounded = replace(choose_stages(), robust=ROBUST)  # type: ignore[arg-type]  # other people's machines: docs/security.md
    assert settings.stages == bounded
    assert FlowerSettings(workers=2, robust="none").stages == choose_stages() == choose_stages(DEFAULT)
    assert settings.laziness == lasg.Spec(task="t", algorithm=DEFAULT, data="own", partition="own", workers=2).laziness


def test_a_federation_can_be_told_its_algorithm_by_name() -> None:
    settings = FlowerSettings(workers=2, algorithm="wk2+qsgd4:64+H3+difference", robust="none")
    assert settings.stages == choose_stages("wk2+qsgd4:64+H3+difference")
    assert settings.spec.algorithm == "wk2+qsgd4:64+H3+difference"


def test_the_largest_staleness_has_one_default() -> None:
    assert SHARED["D"] == Laziness(workers=2).D == 100


def test_an_algorithm_and_a_rule_are_not_both_taken() -> None:
    with pytest.raises(LasgError, match="give the one or the others"):
        choose_stages("wk2+dense", rule="lag")


@pytest.mark.parametrize("settings", [{"algorithm": "laqsg-wk2"}, {"algorithm": "local-sgd", "local_steps": 8}, {}])
def test_a_federation_stores_the_stages_that_it_runs(settings: dict[str, Any]) -> None:
    flower = FlowerSettings(workers=2, **settings)
    assert flower.spec.stages == flower.stages
    assert flower.stages.local_steps == settings.get("local_steps", 1)
    assert flower.spec.iterations == flower.rounds * flower.stages.local_steps


@pytest.mark.parametrize("beside", [{"rule": "lag"}, {"codec": "dense"}, {"local_steps": 3}])
def test_a_federation_refuses_what_its_algorithm_says_already(beside: dict[str, Any]) -> None:
    with pytest.raises(LasgError, match="an algorithm's name says its"):
        FlowerSettings(workers=2, algorithm="wk2+dense", **beside)


@pytest.mark.parametrize("name", ["always+dense+H4", "local-sgd"])
def test_a_loop_of_one_gradient_per_step_refuses_local_steps(name: str) -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    with pytest.raises(LasgError, match="has local steps, and here is one gradient per step"):
        lasg.LazyOptimizer(optimizer, algorithm=name)


def test_stages_may_be_named() -> None:
    assert Stages(rule="wk2", codec="qsgd8:512") == choose_stages("wk2+qsgd8:512")  # type: ignore[arg-type]
    with pytest.raises(LasgError, match="unknown rule 'wk3'"):
        Stages(rule="wk3")  # type: ignore[arg-type]


def test_a_misspelt_belief_is_told_the_beliefs() -> None:
    with pytest.raises(LasgError, match=r"or a belief: replace, difference, residual\. Did you mean difference"):
        choose_stages("wk2+diference")


def test_the_theorems_constant_alone_says_how_lazy() -> None:
    assert Settings(c_d=1.0).laziness_of(4) == Laziness(workers=4, c_d=1.0)


def test_an_infinite_staleness_is_taken_by_specs_loops_and_flower_where_something_bounds_staleness() -> None:
    spec = Spec(task="a", algorithm="lasg-vr", data="digits", D=math.inf)
    assert from_toml(spec.to_toml()) == spec
    assert math.isinf(from_toml(spec.but(algorithm="lasg-wk2", rho=0.5).to_toml()).laziness.D)
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    lasg.LazyOptimizer(torch.optim.SGD(parameters, lr=0.1), rule="wk2", D=math.inf)
    assert math.isinf(FlowerSettings.from_config({"workers": 2, "rule": "wk2", "D": math.inf}).laziness.D)
    unwatched: list[Callable[[], Any]] = [
        lambda: spec.but(algorithm="lasg-wk2"),
        lambda: lasg.LazyOptimizer(torch.optim.SGD(parameters, lr=0.1), rule="wk2", c=0.1, D=math.inf),
        lambda: FlowerSettings(workers=2, rule="wk2", c=0.1, D=math.inf),
    ]
    for make in unwatched:
        with pytest.raises(LasgError, match=r"^D = inf lets a worker be silent for ever, and nothing watches that"):
            make()
    with pytest.raises(LasgError, match=r"^D must be a int, got 10.5"):
        FlowerSettings.from_config({"workers": 2, "D": 10.5})
