"""Stages that make no sense together are refused, and what the line names instead works."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lasg.core.algorithms import ESTIMATORS, KNOWN, Stages, algorithm
from lasg.core.belief import BELIEFS
from lasg.core.codec_names import name_of, parse
from lasg.core.estimators import Momentum, MomentumCorrection, Storm
from lasg.core.further_rules import ALL_RULES
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.core.work import OptimizerSteps
from lasg.errors import LasgError
from tests.core.test_faults import Broken
from tests.core.toy import SMOOTHNESS, M, P

INNER = OptimizerSteps(steps=2, eta=0.05, options={"momentum": 0.9})
DIFFERENCE: dict[str, Any] = {"belief": "difference"}
RESIDUAL: dict[str, Any] = {"belief": "residual"}
# What is chosen, what the line says, and each change that it names.
REFUSED: list[tuple[dict[str, Any], str, list[dict[str, Any]]]] = [
    ({"decay": 0.9}, "only a residual decays, and the belief is replace: take residual", [RESIDUAL]),
    ({"decay": 0.9, **DIFFERENCE}, "only a residual decays, and the belief is difference: take residual", [RESIDUAL]),
    (
        {"robust": "trimmed", "codec": "topk0.1", **RESIDUAL},
        "under residual a sparse message speaks of few: take median-clip",
        [{"robust": "median-clip"}],
    ),
    (
        {"rule": "ps", **RESIDUAL},
        "Take ps with replace or difference, or a worker's rule such as wk2",
        [{"belief": "replace"}, DIFFERENCE, {"rule": "wk2"}],
    ),
    (
        {"rule": "pse", **RESIDUAL},
        "Take pse with replace or difference, or a worker's rule such as wk2",
        [{"belief": "replace"}, DIFFERENCE, {"rule": "wk2"}],
    ),
    (
        {"rule": "wk2", "inner": INNER, **DIFFERENCE},
        "which local steps of SGD do not have: take always or clag",
        [{"rule": "always"}, {"rule": "clag"}],
    ),
    (
        {"rule": "wk1", "inner": INNER, **DIFFERENCE},
        "which local steps of SGD do not have: take always or clag",
        [{"rule": "always"}, {"rule": "clag"}],
    ),
    (
        {"rule": "pse", "inner": INNER, **DIFFERENCE},
        "which local steps of SGD do not have: take always or clag",
        [{"rule": "always"}, {"rule": "clag"}],
    ),
    (
        {"estimator": Storm(), "inner": INNER},
        "Storm compares gradients on one minibatch at two models, which local steps of SGD do not have: "
        "leave Storm out",
        [{"estimator": None}],
    ),
    (
        {"rule": "vr", "estimator": Storm(), "inner": INNER, **DIFFERENCE},
        "which local steps of SGD do not have: leave Storm out, and take always or clag",
        [{"estimator": None, "rule": "always"}, {"estimator": None, "rule": "clag"}],
    ),
    ({"rule": "clag"}, "rule clag compares with what is believed of a worker: take difference", [DIFFERENCE]),
    ({"rule": "clag", **RESIDUAL}, "what is believed of a worker: take difference", [DIFFERENCE]),
    ({"rule": "laq"}, "rule laq compares with what is believed of a worker: take difference", [DIFFERENCE]),
    (
        {"rule": "vr", "estimator": Storm()},
        "rule vr compares with what is believed of a worker: take difference",
        [DIFFERENCE],
    ),
    (
        {"rule": "wk2", "estimator": Storm()},
        "Storm and rule wk2 need gradients at different models: take wk2 without it, or Storm with always, lag or vr",
        [{"estimator": None}, {"rule": "always"}, {"rule": "lag"}, {"rule": "vr", **DIFFERENCE}],
    ),
    (
        {"rule": "pse", "estimator": Storm()},
        "take pse without it, or Storm with always, lag or vr",
        [{"estimator": None}, {"rule": "always"}, {"rule": "lag"}],
    ),
    (
        {"estimator": MomentumCorrection()},
        "momentum correction adds up what is not said yet: take residual, or momentum instead",
        [RESIDUAL, {"estimator": Momentum()}],
    ),
    (
        {"estimator": MomentumCorrection(), **DIFFERENCE},
        "momentum correction adds up what is not said yet: take residual, or momentum instead",
        [RESIDUAL, {"estimator": Momentum()}],
    ),
    (
        {"rule": "laq", "codec": "topk0.3", **DIFFERENCE},
        "rule laq looks at a message before it is sent: take a codec such as uniform4",
        [{"codec": "uniform4"}],
    ),
    (
        {"rule": "laq", "codec": "qsgd4", **DIFFERENCE},
        "rule laq looks at a message before it is sent: take a codec such as uniform4",
        [{"codec": "uniform4"}],
    ),
    (
        {"rule": "vr", **DIFFERENCE},
        "rule vr needs an estimator that knows its noise: +storm, as lasg-vr has it",
        [{"estimator": Storm()}],
    ),
    (
        {"rule": "vr", "estimator": Momentum(), **DIFFERENCE},
        "rule vr needs an estimator that knows its noise: +storm, as lasg-vr has it",
        [{"estimator": Storm()}],
    ),
    (
        {"codec": "topk0.3+ef", **RESIDUAL},
        "+ef and residual both say later what a message leaves out: leave +ef out, or take replace",
        [{"codec": "topk0.3"}, {"belief": "replace"}],
    ),
    (
        {"codec": "grid0.25+ec+ef", **DIFFERENCE},
        "+ef and difference both say later what a message leaves out: leave +ef out, or take replace",
        [{"codec": "grid0.25+ec"}, {"belief": "replace"}],
    ),
    (
        {"codec": "qsgd4+blocks3", **DIFFERENCE},
        "rule always says everything in every round, and with blocks a worker says what is news: take lag or clag, "
        "or leave blocks out",
        [{"rule": "lag"}, {"rule": "clag"}, {"codec": "qsgd4"}],
    ),
    (
        {"rule": "ps", "codec": "qsgd4+blocks3", **DIFFERENCE},
        "rule ps asks for all blocks of a worker or for none: take lag or clag",
        [{"rule": "lag"}, {"rule": "clag"}],
    ),
    (
        {"rule": "pse", "codec": "qsgd4+blocks3", **DIFFERENCE},
        "rule pse asks for all blocks of a worker or for none: take lag or clag",
        [{"rule": "lag"}, {"rule": "clag"}],
    ),
    (
        {"rule": "wk2", "codec": "qsgd4+blocks3", **DIFFERENCE},
        "rule wk2 needs a gradient at the model of the last upload, which every block has another of: take wk1, lag or "
        "clag",
        [{"rule": "wk1"}, {"rule": "lag"}, {"rule": "clag"}],
    ),
    (
        {"rule": "vr", "estimator": Storm(), "codec": "grid0.25+ec+blocks3", **DIFFERENCE},
        "rule vr compares with the noise of a whole estimate, which no block has: take clag or lag",
        [{"rule": "clag"}, {"rule": "lag"}],
    ),
    (
        {"rule": "lag", "codec": "qsgd4+blocks3"},
        "blocks that are no news are left out, and replace would take them for 0: take difference",
        [DIFFERENCE],
    ),
    (
        {"rule": "lag", "codec": "topk0.3+ef+blocks3", **DIFFERENCE},
        "+ef and difference both say later what a message leaves out: leave +ef out",
        [{"codec": "topk0.3+blocks3"}],
    ),
    (
        {"rule": "lag", "codec": "topk0.3+blocks3", "robust": "median-clip", **RESIDUAL},
        "a bound compares what all uploads say of a tensor, and with blocks some leave it out: take difference, or "
        "robust = none",
        [{"robust": None}, {"codec": "topk0.3"}, DIFFERENCE],
    ),
    (
        {"rule": "laq", "codec": "qsgd4+blocks3", **DIFFERENCE},
        "rule laq looks at a message before it is sent: take a codec such as uniform4",
        [{"codec": "uniform4+blocks3"}],
    ),
    (
        {"rule": "fda", "local_steps": 4, **RESIDUAL},
        "rule fda lets workers train on their own, which takes an optimizer of theirs: fda+dense+H4+inner+residual",
        [{"inner": INNER}],
    ),
    (
        {"rule": "fda", "inner": INNER},
        "rule fda says a worker's whole move, once: take residual, without decay, as fda+dense+H2+inner+residual",
        [RESIDUAL],
    ),
    (
        {"rule": "fda", "inner": INNER, "decay": 0.9, **RESIDUAL},
        "take residual, without decay, as fda+dense+H2+inner+residual",
        [{"decay": 1.0}],
    ),
    (
        {"rule": "fda", "inner": INNER, "estimator": Momentum(), **RESIDUAL},
        "rule fda says those of many at once: leave it out, as fda+dense+H2+inner+residual",
        [{"estimator": None}],
    ),
    (
        {"rule": "fda", "inner": replace(INNER, drift=0.5), **RESIDUAL},
        "drift is corrected where all begin a round from one model, and under fda they do not: leave drift out",
        [{"inner": INNER}],
    ),
    (
        {"rule": "fda", "inner": replace(INNER, memory="averaged"), **RESIDUAL},
        "take always, or inner_memory = kept",
        [{"rule": "always"}, {"inner": INNER}],
    ),
]


def runs(stages: Stages) -> bool:
    """Tell whether stages do a few rounds that leave the model finite."""
    smoothness = SMOOTHNESS if stages.rule.name == "ps" else None
    optimizer = ClosedFormSGD(np.zeros(P), Constant(0.1))
    run = Training(Broken("numpy", {}), optimizer, stages, Laziness(workers=M, D=6, c=0.5), smoothness=smoothness)
    for _ in range(8):
        run.step()
    return bool(np.isfinite(run.theta).all() and np.any(run.theta))


@pytest.mark.parametrize(("chosen", "words", "instead"), REFUSED)
def test_what_makes_no_sense_is_refused_and_what_is_named_instead_works(
    chosen: dict[str, Any], words: str, instead: list[dict[str, Any]]
) -> None:
    with pytest.raises(LasgError) as refused:
        Stages(**chosen)
    assert str(refused.value).endswith(words)
    assert "\n" not in str(refused.value)
    for change in instead:
        assert runs(Stages(**{**chosen, **change}))


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("belief", BELIEFS)
@pytest.mark.parametrize("estimator", [None, *ESTIMATORS])
def test_every_combination_is_refused_in_one_line_or_runs(rule: str, belief: Any, estimator: str | None) -> None:
    for codec in ("dense", "qsgd4", "grid0.25+ec", "topk0.3:warm2+ec", "uniform4", "topk0.3+ef", "grid0.25+ec+blocks3"):
        for inner in (None, INNER):
            choices: dict[str, Any] = {"rule": rule, "belief": belief, "codec": codec, "inner": inner}
            try:
                stages = Stages(**choices, estimator=None if estimator is None else ESTIMATORS[estimator]())
            except LasgError as error:
                assert len(str(error).splitlines()) == 1  # noqa: PT017
                continue
            assert runs(stages), choices


@pytest.mark.parametrize("decay", [0.0, -0.1, 1.1, float("nan")])
def test_a_decay_that_is_no_share_is_refused(decay: float) -> None:
    with pytest.raises(LasgError, match=r"^a residual's decay must be above 0 and at most 1, got"):
        Stages(belief="residual", decay=decay)


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, float("nan")])
def test_a_rate_of_storm_that_is_no_share_is_refused(rate: float) -> None:
    with pytest.raises(LasgError, match=r"^storm's rate must be above 0 and at most 1, got"):
        Storm(rate=rate)
    with pytest.raises(LasgError, match=r"^storm's least weight must be above 0 and at most 1, got"):
        Storm(least=rate)


# -- names of compositions -----------------------------------------------------------------------------------------


def test_a_composition_means_what_its_parts_say() -> None:
    found = algorithm("always+topk0.01:warm100+ec+residual0.95+H20+inner")
    stages = found.stages(inner={"optimizer": "AdamW", "eta": 1e-3})
    assert stages == Stages(
        codec=parse("topk0.01:warm100+ec"),
        belief="residual",
        decay=0.95,
        inner=OptimizerSteps(steps=20, optimizer="AdamW", eta=1e-3),
    )
    assert (stages.local_steps, found.outer is not None) == (20, True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vr+grid0.25+ec+difference+storm", KNOWN["lasg-vr"].stages()),
        ("always+topk0.01:warm100+ec+residual+correction0.9", KNOWN["lasg-sparse"].stages()),
        ("clag+difference+topk0.01:float+ec", KNOWN["clag"].stages()),
        ("laq+uniform4+difference", KNOWN["laq"].stages()),
        ("wk2+topk0.01:float+ef", KNOWN["sasg"].stages()),
        ("always+residual+lowrank2", KNOWN["powersgd"].stages()),
        ("always+momentum0.9+topk0.01:float+ec+difference", KNOWN["ef21-sgdm"].stages()),
        ("lag+qsgd4:3+ec+difference+blocks", Stages(rule="lag", codec="qsgd4:3+ec+blocks", belief="difference")),  # type: ignore[arg-type]
        ("clag+blocks4096+difference", Stages(rule="clag", codec="dense+blocks4096", belief="difference")),  # type: ignore[arg-type]
        ("pse-recent+grid.5", Stages(rule="pse-recent", codec="grid.5")),  # type: ignore[arg-type]
    ],
)
def test_an_algorithm_of_the_table_can_be_composed(name: str, expected: Stages) -> None:
    assert algorithm(name).stages() == expected


@pytest.mark.parametrize("name", KNOWN)
def test_every_algorithm_of_the_table_runs_and_its_codec_has_a_name(name: str) -> None:
    stages = KNOWN[name].stages(H=2, inner={"eta": 0.05})
    assert runs(stages)
    own = name_of(stages.codec)
    assert own is not None
    assert parse(own) == stages.codec
    assert replace(stages) == stages


@pytest.mark.parametrize(
    "name",
    [
        "wk2+",
        "wk2+foo",
        "wk2+ec",
        "wk2+ef",
        "wk2+dense+ec",
        "wk2+qsgd4+ec+ec",
        "wk2+qsgd4+ef+ec",
        "wk2+qsgd4+grid",
        "wk2+difference+residual",
        "wk2+difference+difference",
        "wk2+H2+H3",
        "wk2+H0",
        "always+storm+momentum",
        "always+inner+inner",
        "always+residual+median-clip+median-clip",
        "lag+difference+blocks+blocks4",
        "lag+difference+blocks0",
        "lag+difference+blocksmall",
        "lag+lowrank2+difference+blocks64",
        "always+median",
        "always+momentum1",
        "always+storm5",
        "wk3+dense",
        "pse-recent",
        "topk0.01",
    ],
)
def test_a_composition_that_is_none_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(LasgError) as refused:
        algorithm(name)
    assert "\n" not in str(refused.value)
