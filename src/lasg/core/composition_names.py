"""What a composition is called, of parts that a name can say: `algorithms.algorithm` reads such names."""

from __future__ import annotations

from typing import Any

from lasg.core.algorithms import ESTIMATORS, Algorithm, Outer
from lasg.core.estimators import Estimator
from lasg.core.further_rules import ALL_RULES
from lasg.errors import LasgError


def composition_name(rule: str, codec: str, steps: int, base: Algorithm | None = None) -> str:
    """Return the name of a composition: what is usual is left out where a name remains.

    `base` says its belief, its estimator and its outer optimizer; none: the usual ones.
    """
    usual = {"dense", "H1", "replace"}
    parts = [codec, f"H{steps}"]
    if base is not None:
        parts += [base.belief + (f"{base.decay:g}" if base.decay != 1 else ""), *_estimator_name(base.estimator)]
        parts += [] if base.robust is None else [base.robust.name]
        parts += [] if base.outer is None else ["inner"]
        if base.outer not in (None, Outer()):
            raise LasgError(f"{base.name} has an outer optimizer of its own: name the whole, such as {rule}+H20+inner")
    parts = [rule, *(part for part in parts if part not in usual)]
    return f"{rule}+dense" if parts == [rule] and rule in ALL_RULES else "+".join(parts)


def _estimator_name(estimator: Estimator | None) -> list[str]:
    """Return an estimator's part of a composition, if it has one that a name can say."""
    if estimator is None:
        return []
    made: Any = type(estimator)
    for name, kind in ESTIMATORS.items():
        if made is kind:
            number = next(iter(vars(estimator).values()))
            if estimator == made(number):
                return [f"{name}{number:g}"]
    raise LasgError(f"{estimator!r} has no name that a composition could say")
