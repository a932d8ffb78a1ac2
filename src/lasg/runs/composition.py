"""Rules and codecs of the caller's own in a spec: their names, what a reader must know of them, and a fingerprint.

A spec holds no functions. What it holds is enough to show, compare and time a stored run, and to refuse to go on with
it under another rule or codec; to run it takes the program that has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lasg.core.algorithms import KNOWN, Algorithm, algorithm
from lasg.core.block_codec import BlockCodec
from lasg.core.codec_names import name_of, parse
from lasg.core.composition_names import composition_name
from lasg.core.further_rules import ALL_RULES
from lasg.core.own_codec import CodecLike, as_codec
from lasg.core.rules import Record, Rule
from lasg.errors import LasgError, did_you_mean
from lasg.runs.fingerprints import attributes_of, fingerprint

Table = Mapping[str, Any]

ONLY_IN_PROGRAM = "is a program's own: go on with it there, by the same call of lasg.train"
"""What a run is told whose problem, rule or codec is not here."""


def compose(base: Algorithm, rule: Rule | str | None, codec: CodecLike | str | None, settings: Table) -> dict[str, Any]:
    """Return the keys of a spec that say which algorithm it is: `base` with another rule, another codec, or both.

    Of `settings`, those of a spec, H, bits and bucket decide the local steps and the codec of one of the twelve.
    """
    rule = find_rule(base.rule if rule is None else rule)
    if codec is not None and isinstance(base.own_codec, BlockCodec) and not isinstance(find_codec(codec), BlockCodec):
        raise LasgError(
            f"{base.name} says block by block, and the codec given says whole vectors: give one with +blocks"
        )
    codec = find_codec(base.codec(settings["bits"], settings.get("bucket")) if codec is None else codec)
    own_rule = None if ALL_RULES.get(rule.name) == rule else describe_rule(rule)
    known = name_of(codec)
    own_codec = None if known else describe_codec(codec)
    codec_name = known or str(describe_codec(codec)["name"])
    name = composition_name(rule.name, codec_name, base.local_steps(settings["H"]), base)
    return {"algorithm": name, "own_rule": own_rule, "own_codec": own_codec}


def find_rule(rule: Rule | str) -> Rule:
    """Return a rule by its name, or the rule itself."""
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str) or rule not in ALL_RULES:
        hint = did_you_mean(str(rule), ALL_RULES)
        own = "lasg.Rule(name=..., left=FUNCTION)"
        raise LasgError(f"unknown rule {rule!r}.{hint} Known: {', '.join(ALL_RULES)}; or one of your own, {own}")
    return ALL_RULES[rule]


def find_codec(codec: CodecLike | str) -> CodecLike:
    """Return a codec by its name, or the codec itself."""
    if isinstance(codec, str):
        return parse(codec)
    missing = [name for name in ("encode", "decode") if not callable(getattr(codec, name, None))]
    if missing or isinstance(codec, type):
        lacking = "a class: give an object of it" if isinstance(codec, type) else f"without {missing[0]}"
        raise LasgError(
            f"a codec is a name such as qsgd8:512 or an object with encode and decode, got {codec!r}, {lacking}"
        )
    return codec


# -- what a spec says of a rule or codec of the caller's own ------------------------------------------------------


def describe_rule(rule: Rule) -> dict[str, Any]:
    """Return a rule as TOML values."""
    _check_name("rule", rule.name)
    further = (rule.watch, rule.report)
    return {
        "name": rule.name,
        "lazy": rule.left is not None,
        "where": rule.where,
        **({} if rule.probe is None else {"probe": rule.probe}),
        "remembers": list(rule.remembers),
        "estimates": rule.estimate is not None,
        "fingerprint": fingerprint((rule.left, rule.estimate, *(part for part in further if part is not None))),
    }


def describe_codec(codec: CodecLike) -> dict[str, Any]:
    """Return a codec as TOML values: its name (the attribute `name`, or its class's) and plain attributes."""
    given = getattr(codec, "name", None)
    name = given if isinstance(given, str) else type(codec).__name__
    _check_name("codec", name)
    attributes = {key: value for key, value in attributes_of(codec).items() if key != "name"}
    plain = {key: value for key, value in attributes.items() if isinstance(value, bool | int | float | str)}
    return {"name": name, **({"settings": plain} if plain else {}), "fingerprint": fingerprint(codec)}


def _check_name(what: str, name: str) -> None:
    """Refuse a name that a composition such as wk2+qsgd8+H4 cannot hold, or that means something of lasg's there."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\s+]{1,60}", name):
        raise LasgError(
            f"a {what}'s name is one word of at most 60 characters without +, got {name!r}: give it another"
        )
    if name in {*ALL_RULES, *KNOWN} or re.fullmatch(r"dense|qsgd.*|H\d+", name):
        raise LasgError(f"{name!r} is a name of lasg's own: give your {what} another")


# -- back from a spec ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AbsentCodec:
    """Stands for a codec that only the program has which made the run."""

    name: str
    fingerprint: str

    def encode(self, *_: Any) -> NoReturn:
        """Refuse, as decode does."""
        raise LasgError(f"the codec {self.name!r} of this run {ONLY_IN_PROGRAM}")

    decode = encode


def _left(now: Record, last: Record) -> NoReturn:  # noqa: ARG001
    raise LasgError(f"the rule of this run {ONLY_IN_PROGRAM}")


def restore(name: str, own_rule: Table | None, own_codec: Table | None) -> Algorithm:
    """Return the algorithm of a spec. What is not lasg's own can be shown, counted and timed, but not run."""
    rules, codecs = ALL_RULES, {}
    if own_rule is not None:
        left, estimate = (_left if own_rule[key] else None for key in ("lazy", "estimates"))
        kept: dict[str, Any] = {"probe": own_rule.get("probe"), "remembers": tuple(own_rule["remembers"])}
        kept |= {"report": _left} if own_rule["where"] == "all" else {}
        rule = Rule(name=own_rule["name"], where=own_rule["where"], left=left, estimate=estimate, **kept)
        rules = {rule.name: rule}
    if own_codec is not None:
        codecs = {own_codec["name"]: as_codec(AbsentCodec(own_codec["name"], own_codec["fingerprint"]))}
    return algorithm(name, rules=rules, codecs=codecs)


_RULE = {"lazy": bool, "where": str, "probe": str | None, "remembers": list, "estimates": bool}
_BOTH = {"name": str, "fingerprint": str}
_KINDS: dict[str, dict[str, Any]] = {"own_rule": _RULE | _BOTH, "own_codec": _BOTH | {"settings": dict | None}}
"""What `compose` writes; None: it may be absent."""


def check(name: str, own_rule: Table | None, own_codec: Table | None) -> None:
    """Refuse tables that `compose` does not write, and an algorithm that does not name what they describe."""
    for (key, kinds), table in zip(_KINDS.items(), (own_rule, own_codec), strict=True):
        if table is None:
            continue
        wrong = [part for part in {**table, **kinds} if not isinstance(table.get(part), kinds.get(part, ()))]
        if wrong:
            raise LasgError(
                f"{key}: {wrong[0]!r} is unknown, missing or of the wrong type: lasg.train writes this table"
            )
        _check_name(key.removeprefix("own_"), table["name"])
        if table["name"] not in name.split("+"):
            raise LasgError(f"{key} describes {table['name']!r}, which is no part of the algorithm {name!r}")
    restore(name, own_rule, own_codec)
