"""The twelve algorithms of the paper: rows of one table, rule x codec x local work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lasg.core.codecs import QSGD, Codec, Dense, parse
from lasg.core.rules import ALWAYS, LAG, PS, PSE, RULES, WK1, WK2, Rule
from lasg.errors import LasgError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One column of the paper's tables."""

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

    def codec(self, bits: int, bucket: int | None) -> Codec:
        """Return the codec, at the task's number of bits unless it has its own."""
        return self.own_codec or (QSGD(bits=bits, bucket=bucket) if self.quantised else Dense())

    def local_steps(self, H: int) -> int:
        """Return the local steps a round, the task's H unless it has its own."""
        return self.own_steps or (H if self.local else 1)


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
        f"or rule+codec such as wk2+qsgd8, with a rule of {', '.join(RULES)}, and +H4 for 4 local steps"
    )


def composition_name(rule: str, codec: str, steps: int) -> str:
    """Return the name of a composition: what is usual (dense, one local step) is left out where a name remains."""
    parts = [rule, *([] if codec == "dense" else [codec]), *([] if steps == 1 else [f"H{steps}"])]
    return f"{rule}+dense" if parts == [rule] and rule in RULES else "+".join(parts)


def _is_steps(part: str) -> bool:
    """Tell whether a part of a composition is a number of local steps, such as H4."""
    return part.startswith("H") and part[1:].isdecimal()


def _compose(name: str, rule: Rule, parts: list[str], known: Mapping[str, Codec]) -> Algorithm:
    steps = [int(part[1:]) for part in parts if _is_steps(part)]
    codecs = [part for part in parts if not _is_steps(part)]
    if len(steps) > 1 or len(codecs) > 1:
        raise LasgError(f"{name!r} names two codecs or two numbers of local steps: rule+codec+H4 has one of each")
    if steps == [0]:
        raise LasgError(f"{name!r} has H0: a round has at least one local step. H1 is one gradient a round")
    codec = (known[codecs[0]] if codecs[0] in known else parse(codecs[0])) if codecs else Dense()
    return Algorithm(name=name, rule=rule, own_codec=codec, own_steps=steps[0] if steps else 1)
