"""What every engine is built from: one choice per stage of a round, and which choices go together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lasg.core.belief import BELIEFS, Belief
from lasg.core.block_codec import BlockCodec
from lasg.core.blocks import Blocks
from lasg.core.codec_names import FEEDBACK, parse
from lasg.core.codecs import Codec, Dense, Shapes, StatefulCodec
from lasg.core.estimators import Estimator, MomentumCorrection
from lasg.core.feedback import Feedback
from lasg.core.further_rules import ALL_RULES
from lasg.core.local_models import LocalModels
from lasg.core.own_codec import as_codec
from lasg.core.robust import Bound, Trimmed, as_bound
from lasg.core.rules import ALWAYS, Probe, Rule, points_of
from lasg.core.sparse import TopK
from lasg.core.work import OptimizerSteps, SGDSteps, Work
from lasg.errors import LasgError


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One choice per stage of a round: what every engine is built from."""

    rule: Rule = ALWAYS
    codec: Codec = Dense()  # noqa: RUF009 (it is frozen)
    belief: Belief = "replace"
    decay: float = 1.0
    """What remains of a residual from one round to the next."""
    estimator: Estimator | None = None
    """What filters the gradients; None: they are the contributions."""
    local_steps: int = 1
    """H: one gradient, or so many local steps as a pseudo-gradient; with qsr, so many at least."""
    inner: OptimizerSteps | None = None
    """Local steps with an optimizer of the workers' own; None: gradients, or SGD at the server's step size."""
    robust: Bound | None = None
    """What bounds how much one worker adds to the sum; None: nothing."""

    def __post_init__(self) -> None:
        rule: Any = self.rule  # or their names
        codec: Any = self.codec
        object.__setattr__(self, "rule", rule_named(rule) if isinstance(rule, str) else rule)
        object.__setattr__(self, "codec", as_codec(parse(codec) if isinstance(codec, str) else codec))
        object.__setattr__(self, "robust", as_bound(self.robust))
        if self.inner is not None:
            object.__setattr__(self, "local_steps", self.inner.steps)
        if self.belief not in BELIEFS:
            raise LasgError(f"belief must be one of {', '.join(BELIEFS)}, got {self.belief!r}")
        if not 0 < self.decay <= 1:
            raise LasgError(f"a residual's decay must be above 0 and at most 1, got {self.decay!r}")
        self._refuse_what_makes_no_sense()

    def _refuse_what_makes_no_sense(self) -> None:
        """Refuse combinations that cannot work; name the nearest that does."""
        rule, estimator = self.rule, self.estimator
        if self.decay != 1 and self.belief != "residual":
            raise LasgError(f"only a residual decays, and the belief is {self.belief}: take residual")
        if isinstance(self.robust, Trimmed) and self.belief == "residual" and isinstance(self.codec, TopK):
            raise LasgError(
                "trimmed takes an entry that few workers speak of for an outlier, and under residual a sparse message "
                "speaks of few: take median-clip"
            )
        if rule.where == "server" and self.belief == "residual":
            raise LasgError(
                f"rule {rule.name} with residual makes no sense: who is not asked computes nothing, so nothing is left "
                f"to say later. Take {rule.name} with replace or difference, or a worker's rule such as wk2"
            )
        if self.inner is not None and self.probe is not None:
            who = rule.name if rule.probe else type(estimator).__name__
            advice = "take always or clag" if rule.probe or rule.needs else ""
            if estimator is not None and estimator.probe:
                advice = f"leave {type(estimator).__name__} out" + (f", and {advice}" if advice else "")
            raise LasgError(
                f"{who} compares gradients on one minibatch at two models, which local steps of {self.inner.optimizer} "
                f"do not have: {advice}"
            )
        self._refuse_averages()
        self._refuse_for_all()
        if isinstance(self.codec, Feedback) and self.belief != "replace":
            raise LasgError(
                f"+{FEEDBACK} and {self.belief} both say later what a message leaves out: leave +{FEEDBACK} out, or "
                "take replace"
            )
        if rule.sees_belief and self.belief != "difference":
            raise LasgError(f"rule {rule.name} compares with what is believed of a worker: take difference")
        if estimator is not None and rule.probe is not None and estimator.probe not in (None, rule.probe):
            name = type(estimator).__name__
            raise LasgError(
                f"{name} and rule {rule.name} need gradients at different models: "
                f"take {rule.name} without it, or {name} with always, lag or vr"
            )
        if isinstance(estimator, MomentumCorrection) and self.belief != "residual":
            raise LasgError("momentum correction adds up what is not said yet: take residual, or momentum instead")
        said = self.codec.codec if isinstance(self.codec, BlockCodec) else self.codec
        if rule.sees_message and (isinstance(said, StatefulCodec) or said.unbiased):
            raise LasgError(f"rule {rule.name} looks at a message before it is sent: take a codec such as uniform4")
        if rule.needs is not None and (estimator is None or rule.needs not in estimator.init(1, np.zeros(1))):
            raise LasgError(f"rule {rule.name} needs an estimator that knows its noise: +storm, as lasg-vr has it")

        self._refuse_blocks()

    def _refuse_blocks(self) -> None:
        """Refuse what cannot be decided, or said, block by block."""
        if not isinstance(self.codec, BlockCodec):
            return
        rule = self.rule
        if rule.left is None:
            raise LasgError(
                f"rule {rule.name} says everything in every round, and with blocks a worker says what is news: take "
                "lag or clag, or leave blocks out"
            )
        if rule.where == "server":
            raise LasgError(f"rule {rule.name} asks for all blocks of a worker or for none: take lag or clag")
        if rule.probe == "last":
            raise LasgError(
                f"rule {rule.name} needs a gradient at the model of the last upload, which every block has another of: "
                "take wk1, lag or clag"
            )
        if rule.needs is not None:
            raise LasgError(
                f"rule {rule.name} compares with the noise of a whole estimate, which no block has: take clag or lag"
            )
        if self.belief == "replace":
            raise LasgError("blocks that are no news are left out, and replace would take them for 0: take difference")
        if isinstance(self.codec.codec, Feedback):
            raise LasgError(
                f"+{FEEDBACK} and {self.belief} both say later what a message leaves out: leave +{FEEDBACK} out"
            )
        if self.robust is not None and self.belief == "residual":  # under difference it compares what is believed
            raise LasgError(
                "a bound compares what all uploads say of a tensor, and with blocks some leave it out: take "
                "difference, or robust = none"
            )

    def _refuse_averages(self) -> None:
        """Refuse what looks at the size of contributions where they are moves of a state, too, in other units."""
        if not self.averages:
            return
        if self.rule.left is not None:
            raise LasgError(
                f"rule {self.rule.name} compares moves of the model, and with inner_memory = averaged a contribution "
                "is also a move of momenta: take always, or inner_memory = kept"
            )
        if self.estimator is not None:
            raise LasgError(
                f"{type(self.estimator).__name__} filters moves of the model, and with inner_memory = averaged a "
                "contribution is also a move of momenta: leave it out, or take inner_memory = kept"
            )

    def _refuse_for_all(self) -> None:
        """Refuse what does not go with workers that go on from models of their own until all upload."""
        name, inner = self.rule.name, self.inner
        if self.rule.where != "all":
            return
        nearest = f"{name}+dense+H{self.local_steps}+inner+residual"
        if inner is None:
            raise LasgError(
                f"rule {name} lets workers train on their own, which takes an optimizer of theirs: {nearest}"
            )
        if self.belief != "residual" or self.decay != 1:
            raise LasgError(f"rule {name} says a worker's whole move, once: take residual, without decay, as {nearest}")
        if self.estimator is not None:
            raise LasgError(
                f"{type(self.estimator).__name__} filters the moves of single rounds, and rule {name} says those of "
                f"many at once: leave it out, as {nearest}"
            )
        if inner.drift:
            raise LasgError(
                f"drift is corrected where all begin a round from one model, and under {name} they do not: leave drift "
                "out"
            )

    @property
    def blocks(self) -> Blocks | None:
        """The blocks of a model of which each is news or not by itself; None: the whole is, or is not."""
        return self.codec.blocks if isinstance(self.codec, BlockCodec) else None

    @property
    def averages(self) -> int:
        """How many vectors of the model's length lie behind it in the server's: averages of the workers' states."""
        return 0 if self.inner is None else len(self.inner.averaged)

    @property
    def work(self) -> Work:
        """What a worker computes in a round."""
        if self.inner is not None and self.rule.where == "all":
            return LocalModels(self.inner)
        return self.inner or SGDSteps(self.local_steps)

    @property
    def probe(self) -> Probe | None:
        """Where, besides theta^k, gradients are needed."""
        return self.rule.probe or self.own_probe

    @property
    def own_probe(self) -> Probe | None:
        """Where the estimator needs gradients, whatever the rule does."""
        return None if self.estimator is None else self.estimator.probe

    def points(self, k: Any, D: float, *, decides: bool = True) -> Any:
        """At how many models a worker that computes needs its gradient in round k (or in many): 1 or 2.

        Where no rule `decides`, since laziness was given up, only the estimator's probe is needed.
        """
        return points_of(self.probe if decides else self.own_probe, k, D)

    @property
    def one_gradient(self) -> bool:
        """Whether a round is one gradient, and no local step."""
        return self.inner is None and self.local_steps == 1

    def for_shapes(self, shapes: Shapes | None) -> Stages:
        """Return the same for a model of these tensors."""
        if shapes is None:
            return self
        shapes = shapes * (1 + self.averages)
        robust = None if self.robust is None else self.robust.for_shapes(shapes)
        return replace(self, codec=self.codec.for_shapes(shapes), robust=robust)

    def describe(self) -> dict[str, str | int]:
        """Return what processes of one run must agree on, in words that are the same everywhere."""
        stages: dict[str, str | int] = {"rule": self.rule.name, "codec": repr(self.codec)}
        if self.belief != "replace":
            stages["belief"] = self.belief if self.decay == 1 else f"{self.belief}{self.decay:g}"
        if self.estimator is not None:
            stages["estimator"] = repr(self.estimator)
        if self.robust is not None:
            stages["robust"] = repr(self.robust)
        if self.inner is not None:
            stages["inner"] = repr(self.inner)
        return {**stages, "local steps": self.local_steps}


def rule_named(name: str) -> Rule:
    """Return a rule by its name."""
    if name not in ALL_RULES:
        raise LasgError(f"unknown rule {name!r}: one of {', '.join(ALL_RULES)}")
    return ALL_RULES[name]
