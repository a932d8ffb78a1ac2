"""Algorithms: rows of one table, one choice per stage of a round. The paper's twelve, others' and lasg's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from lasg.core.belief import BELIEFS, Belief
from lasg.core.codec_names import BLOCKS, CODED, FEEDBACK, by_blocks, parse
from lasg.core.codecs import QSGD, Codec, Dense
from lasg.core.estimators import Estimator, Momentum, MomentumCorrection, Storm
from lasg.core.further_rules import ALL_RULES, CLAG, FDA, LAQ, VR
from lasg.core.own_codec import CodecLike, as_codec
from lasg.core.robust import Bound, MedianClip, bound_of_name
from lasg.core.rules import ALWAYS, LAG, PS, PSE, WK1, WK2, Rule
from lasg.core.stages import Stages
from lasg.core.work import OptimizerSteps
from lasg.errors import LasgError, did_you_mean

__all__ = [
    "ALGORITHMS",
    "BITS",
    "BUCKET",
    "DEFAULT",
    "ESTIMATORS",
    "KNOWN",
    "LOCAL_DEFAULT",
    "PAPER",
    "Algorithm",
    "Outer",
    "Stages",
]
__all__ += ["algorithm", "choose_stages"]


@dataclass(frozen=True)
class Outer:
    """The server's optimizer of an algorithm whose workers have one of their own."""

    name: str = "SGD"
    eta: float = 1.0
    """SGD of rate 1 averages the workers' models."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A row of the table, or a composition of its own."""

    name: str
    rule: Rule = ALWAYS
    quantised: bool = False
    local: bool = False
    """Whether a round is H local steps instead of one gradient."""
    summary: str = ""
    reference: str = ""
    """The paper it is from."""
    own_codec: Codec | None = None
    """A codec of its own instead of the task's."""
    own_steps: int | None = None
    """Local steps of its own instead of the task's."""
    belief: Belief = "replace"
    decay: float = 1.0
    estimator: Estimator | None = None
    robust: Bound | None = None
    outer: Outer | None = None
    """The server's optimizer; then the task's optimizer takes the workers' steps. None: it is the task's."""
    server: Outer | None = None
    """The server's optimizer where it is part of the algorithm, and workers send gradients; eta is the task's."""

    def codec(self, bits: int, bucket: int | None) -> Codec:
        """Return the codec, at the task's number of bits unless it has its own."""
        return self.own_codec or (QSGD(bits=bits, bucket=bucket) if self.quantised else Dense())

    def local_steps(self, H: int) -> int:
        """Return the local steps per round, the task's H unless it has its own."""
        return self.own_steps or (H if self.local else 1)

    def stages(
        self, *, bits: int = 4, bucket: int | None = None, H: int = 1, inner: Mapping[str, Any] = MappingProxyType({})
    ) -> Stages:
        """Return the choices that a run is built from; bits, bucket, H and the `inner` optimizer are the task's."""
        steps = self.local_steps(H)
        return Stages(
            rule=self.rule,
            codec=self.codec(bits, bucket),
            belief=self.belief,
            decay=self.decay,
            estimator=self.estimator,
            local_steps=steps,
            inner=None if self.outer is None else OptimizerSteps(steps=steps, **inner),
            robust=self.robust,
        )


PAPER = "Chen, Sun, Yin 2020 (LASG)"
"""Where the first twelve are from."""
_ROWS = (
    Algorithm(name="sgd", rule=ALWAYS, summary="every worker uploads every round"),
    Algorithm(name="lag-wk", rule=LAG, summary="upload when the gradient changed (noise included)"),
    Algorithm(name="lasg-wk1", rule=WK1, summary="upload when the change since a snapshot changed"),
    Algorithm(name="lasg-wk2", rule=WK2, summary="upload when the gradient changed on the same sample"),
    Algorithm(name="lasg-ps", rule=PS, summary="ask when L_m times the model's move is large"),
    Algorithm(name="lasg-pse", rule=PSE, summary="as lasg-ps, with L_m estimated on the way"),
    Algorithm(name="local-sgd", rule=ALWAYS, local=True, summary="H local steps, then average the models"),
    Algorithm(name="qsgd", rule=ALWAYS, quantised=True, summary="sgd, quantised uploads"),
    Algorithm(name="laqsg-wk1", rule=WK1, quantised=True, summary="lasg-wk1, quantised uploads"),
    Algorithm(name="laqsg-wk2", rule=WK2, quantised=True, summary="lasg-wk2, quantised uploads"),
    Algorithm(name="laqsg-ps", rule=PS, quantised=True, summary="lasg-ps, quantised uploads"),
    Algorithm(name="laqsg-pse", rule=PSE, quantised=True, summary="lasg-pse, quantised uploads"),
)

ALGORITHMS = {row.name: row for row in _ROWS}
"""The paper's twelve."""

_NESTEROV = Outer("SGD", 0.7, {"momentum": 0.9, "nesterov": True})
_OTHER_ROWS = (
    Algorithm(
        name="lasg-vr",
        rule=VR,
        own_codec=parse("grid0.25+ec"),
        belief="difference",
        estimator=Storm(),
        summary="lazy variance-reduced gradients, coded differences: the fewest bits on regressions",
        reference="lasg; STORM: Cutkosky and Orabona 2019",
    ),
    Algorithm(
        name="lasg-sparse",
        own_codec=parse("topk0.01:warm100+ec"),
        belief="residual",
        estimator=MomentumCorrection(0.9),
        summary="one gradient per step; the 1 % with most news, one bit each; for networks",
        reference="lasg; after Lin et al. 2017",
    ),
    Algorithm(
        name="lasg-sparse-local",
        local=True,
        own_codec=parse("topk0.01:warm10+ec"),
        belief="residual",
        outer=Outer(),
        summary="H steps of any optimizer; the 1 % of the move with most news, one bit each; for networks",
        reference="lasg; after SparseLoCo",
    ),
    Algorithm(
        name="lasg-grid-local",
        local=True,
        own_codec=parse("grid0.6+ec"),
        belief="residual",
        outer=Outer("SGD", 1.0, {"momentum": 0.4, "nesterov": True}),
        summary="a few steps of any optimizer (H = 4); 40 % of the move's energy, on a grid; for transformers",
        reference="lasg",
    ),
    Algorithm(
        name="lasg-local",
        local=True,
        own_codec=parse("lowrank8:rounded"),
        belief="residual",
        outer=Outer("SGD", 0.3, {"momentum": 0.9, "nesterov": True}),
        summary="H steps of any optimizer; matrices' moves in rank 8, 3 bits per number; outer Nesterov; for networks",
        reference="lasg; after DiLoCo and PowerSGD",
    ),
    Algorithm(
        name="diloco",
        local=True,
        outer=_NESTEROV,
        summary="H steps of any optimizer, averaged, with outer Nesterov momentum",
        reference="Douillard et al. 2023",
    ),
    Algorithm(
        name="sparseloco",
        local=True,
        own_codec=parse("topk0.015625:2bit:chunk4096"),
        belief="residual",
        decay=0.95,
        robust=MedianClip(),
        outer=Outer(),
        summary="H steps of any optimizer; 64 of every 4,096 entries of the move, 2 bits each, clipped to the median",
        reference="Sarfi et al. 2025; the clipping: Lidin et al. 2026",
    ),
    Algorithm(
        name="slowmo",
        local=True,
        outer=Outer("SGD", 1.0, {"momentum": 0.5}),
        summary="local SGD with outer momentum",
        reference="Wang et al. 2019",
    ),
    Algorithm(
        name="fedadam",
        local=True,
        outer=Outer("Adam", 0.01, {"betas": [0.9, 0.99], "eps": 1e-3}),
        summary="H local steps, Adam on the average move",
        reference="Reddi et al. 2021",
    ),
    Algorithm(
        name="fda",
        rule=FDA,
        local=True,
        belief="residual",
        outer=Outer(),
        summary="local steps until two numbers per worker and round say that models are far apart; then the average",
        reference="Theologitis et al. 2024 (FDA); the measured bound: 2025 (FDA-Opt)",
    ),
    Algorithm(
        name="dgc",
        own_codec=parse("topk0.001:float:warm100+ec"),
        belief="residual",
        estimator=MomentumCorrection(0.9),
        summary="deep gradient compression: the 0.1 % largest of the momentum that was not said yet",
        reference="Lin et al. 2017",
    ),
    Algorithm(
        name="ef21",
        own_codec=parse("topk0.01:float+ec"),
        belief="difference",
        summary="the 1 % largest entries of the difference to what is believed",
        reference="Richtarik, Sokolov, Fatkhullin 2021",
    ),
    Algorithm(
        name="ef21-sgdm",
        own_codec=parse("topk0.01:float+ec"),
        belief="difference",
        estimator=Momentum(0.9),
        summary="ef21 on each worker's running mean of its gradients",
        reference="Fatkhullin, Tyurin, Richtarik 2023",
    ),
    Algorithm(
        name="clag",
        rule=CLAG,
        own_codec=parse("topk0.01:float+ec"),
        belief="difference",
        summary="ef21, silent while the difference is small against the gradient's change",
        reference="Richtarik et al. 2022 (3PC)",
    ),
    Algorithm(
        name="laq",
        rule=LAQ,
        own_codec=parse("uniform4"),
        belief="difference",
        summary="quantised differences, silent while they are small against the model's moves and their own error",
        reference="Sun, Chen, Giannakis, Yin 2019",
    ),
    Algorithm(
        name="sasg",
        rule=WK2,
        own_codec=parse("topk0.01:float+ef"),
        summary="lasg-wk2 with the 1 % largest entries, and error feedback",
        reference="Deng, Sun, Liu, Li 2021",
    ),
    Algorithm(
        name="cada",
        rule=WK2,
        server=Outer("Adam", 0.0, {"amsgrad": True}),
        summary="lasg-wk2 with AMSGrad at the server",
        reference="Chen, Guo, Sun, Yin 2021 (CADA2)",
    ),
    Algorithm(
        name="powersgd",
        own_codec=parse("lowrank2"),
        belief="residual",
        summary="matrices as products of two of rank 2, with error feedback",
        reference="Vogels, Karimireddy, Jaggi 2019",
    ),
)
KNOWN = {**ALGORITHMS, **{row.name: row for row in _OTHER_ROWS}}
"""All algorithms that have a name."""
ESTIMATORS: dict[str, type[Any]] = {"momentum": Momentum, "correction": MomentumCorrection, "storm": Storm}
"""Estimators by the names that compositions use, before their number."""


def algorithm(
    name: str, *, rules: Mapping[str, Rule] = ALL_RULES, codecs: Mapping[str, Codec] = MappingProxyType({})
) -> Algorithm:
    """Return the algorithm called `name`: one of the table, or a composition such as wk2+qsgd8:512+H4.

    `rules` and `codecs` are the names that a composition may use, besides the codecs that `codecs.parse` reads.
    """
    if name in KNOWN:
        return KNOWN[name]
    rule, *parts = name.split("+")
    if rule in rules and (parts or rule not in ALL_RULES):
        return _compose(name, rules[rule], parts, codecs)
    raise LasgError(
        f"unknown algorithm {name!r}.{did_you_mean(name, KNOWN)} Known: {', '.join(KNOWN)}; "
        f"or rule+codec such as wk2+qsgd8, with a rule of {', '.join(ALL_RULES)}, +H4 for 4 local steps, "
        "and +difference or +residual for another belief"
    )


DEFAULT = "always+qsgd8:512"
"""The algorithm of a training loop or a federation that names none: every gradient, in 8 bits."""
LOCAL_DEFAULT = "lasg-local"
"""The algorithm of a loop with local steps that names none."""
BITS, BUCKET = 8, 512
"""What the quantised ones of the twelve take there: in a spec the task says it."""


def choose_stages(
    name: str | None = None,
    rule: Rule | str | None = None,
    codec: CodecLike | str | None = None,
    local_steps: int = 1,
    *,
    one_gradient: bool = False,
) -> Stages:
    """Return the stages of an algorithm by its name, or of `DEFAULT` with another rule, codec or local steps.

    `one_gradient` refuses local steps: a caller that has one minibatch per round cannot take them.
    """
    if name is not None and (rule is not None or codec is not None):
        raise LasgError("an algorithm's name says its rule and codec: give the one or the others")
    chosen = algorithm(name or DEFAULT)
    if one_gradient and (chosen.local or chosen.local_steps(1) > 1):
        raise LasgError(f"{name} has local steps, and here is one gradient per step: take an algorithm without them")
    if one_gradient and chosen.outer is not None:
        raise LasgError(f"{name} steps with the ranks' own optimizers, and here is one for all: take lasg-sparse")
    stages = chosen.stages(bits=BITS, bucket=BUCKET, H=local_steps)
    changed: dict[str, Any] = {"rule": rule, "codec": codec, "local_steps": None if local_steps == 1 else local_steps}
    return replace(stages, **{stage: choice for stage, choice in changed.items() if choice is not None})


def _compose(name: str, rule: Rule, parts: list[str], known: Mapping[str, Codec]) -> Algorithm:
    """Return the algorithm of a rule and further parts, in any order but +ec, which follows its codec."""
    chosen: dict[str, Any] = {}
    for part in parts:
        key, value = _part(name, part, chosen, known)
        if key in chosen and part not in (CODED, FEEDBACK):
            raise LasgError(
                f"{name!r} names two codecs, two beliefs or two numbers of local steps: rule+codec+H4+difference has "
                "one of each"
            )
        chosen[key] = value
    belief, decay = chosen.get("belief", ("replace", 1.0))
    codec = _codec_named(chosen.get("codec", "dense"), known)
    return Algorithm(
        name=name,
        rule=rule,
        own_codec=by_blocks(as_codec(codec), chosen["blocks"]) if "blocks" in chosen else codec,
        own_steps=chosen.get("steps", 1),
        belief=belief,
        decay=decay,
        estimator=chosen.get("estimator"),
        robust=chosen.get("robust"),
        outer=chosen.get("outer"),
    )


def _part(name: str, part: str, chosen: Mapping[str, Any], known: Mapping[str, Codec]) -> tuple[str, Any]:
    """Return which stage a part of a composition chooses, and what."""
    if found := re.fullmatch(r"H(\d+)", part):
        if part == "H0":
            raise LasgError(f"{name!r} has H0: a round has at least one local step. H1 is one gradient per round")
        return "steps", int(found[1])
    if found := re.fullmatch(rf"({'|'.join(BELIEFS)})(\d*\.?\d+)?", part):
        return "belief", (found[1], float(found[2] or 1))
    if found := re.fullmatch(rf"({'|'.join(ESTIMATORS)})(\d*\.?\d+)?", part):
        kind = ESTIMATORS[found[1]]
        return "estimator", kind(float(found[2])) if found[2] else kind()
    bound = bound_of_name(part)
    if part == "inner" or bound is not None or BLOCKS.fullmatch(part):
        return ("outer", Outer()) if part == "inner" else ("blocks", part) if bound is None else ("robust", bound)
    if part in (CODED, FEEDBACK) and isinstance(chosen.get("codec"), str):
        return "codec", f"{chosen['codec']}+{part}"
    _codec_named(part, known)  # refuses what is none
    return "codec", part


def _codec_named(name: str, known: Mapping[str, Codec]) -> Codec:
    try:
        return known[name] if name in known else parse(name)
    except LasgError as error:
        hint = did_you_mean(name, BELIEFS)
        raise LasgError(f"{error}; or a belief: {', '.join(BELIEFS)}.{hint}") from None
