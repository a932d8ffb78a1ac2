"""The twelve algorithms of the paper: rows of one table, one choice per stage of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from lasg.core.belief import BELIEFS, Belief
from lasg.core.codecs import QSGD, Codec, CodecLike, Dense, as_codec, parse
from lasg.core.estimators import Estimator
from lasg.core.rules import ALWAYS, LAG, PS, PSE, RULES, WK1, WK2, Rule
from lasg.errors import LasgError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One choice per stage of a round: what every engine is built from."""

    rule: Rule = ALWAYS
    codec: Codec = Dense()  # noqa: RUF009 (it is frozen)
    belief: Belief = "replace"
    estimator: Estimator | None = None
    """What filters the gradients; None: they are the contributions."""
    local_steps: int = 1
    """H: one gradient, or so many local steps as a pseudo-gradient."""

    def __post_init__(self) -> None:
        rule: Any = self.rule  # or their names
        codec: Any = self.codec
        object.__setattr__(self, "rule", _rule_named(rule) if isinstance(rule, str) else rule)
        object.__setattr__(self, "codec", as_codec(parse(codec) if isinstance(codec, str) else codec))
        if self.belief not in BELIEFS:
            raise LasgError(f"belief must be one of {', '.join(BELIEFS)}, got {self.belief!r}")

    def describe(self) -> dict[str, str | int]:
        """Return what processes of one run must agree on, in words that are the same everywhere."""
        stages: dict[str, str | int] = {"rule": self.rule.name, "codec": repr(self.codec)}
        if self.belief != "replace":
            stages["belief"] = self.belief
        if self.estimator is not None:
            stages["estimator"] = repr(self.estimator)
        return {**stages, "local steps": self.local_steps}


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One column of the paper's tables, or a composition of its own."""

    name: str
    rule: Rule
    quantised: bool = False
    local: bool = False
    """Whether a round is H local steps instead of one gradient."""
    summary: str = ""
    own_codec: Codec | None = None
    """A codec of its own instead of the task's."""
    own_steps: int | None = None
    """Local steps of its own instead of the task's."""
    belief: Belief = "replace"
    estimator: Estimator | None = None

    def codec(self, bits: int, bucket: int | None) -> Codec:
        """Return the codec, at the task's number of bits unless it has its own."""
        return self.own_codec or (QSGD(bits=bits, bucket=bucket) if self.quantised else Dense())

    def local_steps(self, H: int) -> int:
        """Return the local steps per round, the task's H unless it has its own."""
        return self.own_steps or (H if self.local else 1)

    def stages(self, *, bits: int = 4, bucket: int | None = None, H: int = 1) -> Stages:
        """Return the choices that a run is built from; bits, bucket and H are the task's."""
        return Stages(
            rule=self.rule,
            codec=self.codec(bits, bucket),
            belief=self.belief,
            estimator=self.estimator,
            local_steps=self.local_steps(H),
        )


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


def algorithm(
    name: str, *, rules: Mapping[str, Rule] = RULES, codecs: Mapping[str, Codec] = MappingProxyType({})
) -> Algorithm:
    """Return the algorithm called `name`: one of the twelve, or a composition such as wk2+qsgd8:512+H4.

    `rules` and `codecs` are the names that a composition may use, besides the codecs that `codecs.parse` reads.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    rule, *parts = name.split("+")
    if rule in rules and (parts or rule not in RULES):
        return _compose(name, rules[rule], parts, codecs)
    raise LasgError(
        f"unknown algorithm {name!r}.{did_you_mean(name, ALGORITHMS)} Known: {', '.join(ALGORITHMS)}; "
        f"or rule+codec such as wk2+qsgd8, with a rule of {', '.join(RULES)}, +H4 for 4 local steps, "
        "and +difference or +residual for another belief"
    )


DEFAULT = "always+qsgd8:512"
"""The algorithm of a training loop or a federation that names none: every gradient, in 8 bits."""
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
    stages = chosen.stages(bits=BITS, bucket=BUCKET, H=local_steps)
    changed: dict[str, Any] = {"rule": _rule_named(rule) if isinstance(rule, str) else rule}
    changed |= {"codec": parse(codec) if isinstance(codec, str) else codec}
    changed |= {"local_steps": None if local_steps == 1 else local_steps}
    return replace(stages, **{stage: choice for stage, choice in changed.items() if choice is not None})


def _rule_named(name: str) -> Rule:
    if name not in RULES:
        raise LasgError(f"unknown rule {name!r}: one of {', '.join(RULES)}")
    return RULES[name]


def composition_name(rule: str, codec: str, steps: int, belief: Belief = "replace") -> str:
    """Return the name of a composition: what is usual is left out where a name remains."""
    usual = {"dense", "H1", "replace"}
    parts = [rule, *(part for part in (codec, f"H{steps}", belief) if part not in usual)]
    return f"{rule}+dense" if parts == [rule] and rule in RULES else "+".join(parts)


def _is_steps(part: str) -> bool:
    """Tell whether a part of a composition is a number of local steps, such as H4."""
    return part.startswith("H") and part[1:].isdecimal()


def _compose(name: str, rule: Rule, parts: list[str], known: Mapping[str, Codec]) -> Algorithm:
    steps = [int(part[1:]) for part in parts if _is_steps(part)]
    beliefs = [belief for belief in BELIEFS for part in parts if part == belief]
    codecs = [part for part in parts if not _is_steps(part) and part not in BELIEFS]
    if max(len(steps), len(codecs), len(beliefs)) > 1:
        raise LasgError(
            f"{name!r} names two codecs, two beliefs or two numbers of local steps: rule+codec+H4+difference has one "
            "of each"
        )
    if steps == [0]:
        raise LasgError(f"{name!r} has H0: a round has at least one local step. H1 is one gradient per round")
    try:
        codec = (known[codecs[0]] if codecs[0] in known else parse(codecs[0])) if codecs else Dense()
    except LasgError as error:
        hint = did_you_mean(codecs[0], BELIEFS)
        raise LasgError(f"{error}; or a belief: {', '.join(BELIEFS)}.{hint}") from None
    belief = beliefs[0] if beliefs else "replace"
    return Algorithm(name=name, rule=rule, own_codec=codec, own_steps=steps[0] if steps else 1, belief=belief)
