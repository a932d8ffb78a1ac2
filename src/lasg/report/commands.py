"""The command line that runs a spec again."""

from __future__ import annotations

import re
import shlex
from typing import Any

import tomli_w

from lasg.data.sources import is_own
from lasg.errors import LasgError
from lasg.runs.pairs import parse_value
from lasg.runs.spec import HOW_LAZY, Spec
from lasg.runs.tasks import SETTINGS, task

_OWN = ("task", "algorithm", "seed", "partition", "until")


def command(spec: Spec) -> str | None:
    """Return the `lasg run` line that gives exactly this run; None where the task or algorithm is the caller's own."""
    if spec.own_rule or spec.own_codec:
        return None
    try:
        bases = {name: task(spec.task).spec(spec.algorithm, setting=name, seed=spec.seed) for name in SETTINGS}
        fitting = (name for name, base in bases.items() if base.partition == spec.partition and not _lacks(spec, base))
        setting = next(fitting, None)
        # Another partition has other options than the task's: they are dropped with it.
        base = bases[setting] if setting else bases["homogeneous"]
    except LasgError:
        return None
    words = ["lasg", "run", spec.task, "-a", spec.algorithm, "--seed", str(spec.seed)]
    if not setting and any(other.partition == spec.partition for other in bases.values()):
        words += ["--setting", "homogeneous"]  # or the options of that partition would come with it
    words += ["--setting", setting] if setting else ["--set", f"partition={spec.partition}"]
    if _lacks(spec, base):
        return None
    given, usual = spec.to_dict(), base.to_dict()
    changed = {key: value for key, value in given.items() if key not in _OWN and usual.get(key) != value}
    # How lazy a run is by default depends on its data and optimizer: it is said where it is not that.
    changed = {key: value for key, value in changed.items() if key not in HOW_LAZY}
    if spec.how_lazy != spec.usual_laziness():
        changed |= spec.how_lazy
    if is_own(spec.task):
        changed["data"] = spec.data  # the whole path: the task may name it from another folder
    if spec.until:
        changed["iterations"] = spec.iterations  # or the cap on them would give way to the budget
    for key, value in changed.items():
        words += ["--set", f"{key}={_toml(value)}"]
    for kind, budget in spec.until.items():
        words += ["--until", f"{kind}={_toml(budget)}"]
    return shlex.join(words)


def _lacks(spec: Spec, base: Spec) -> bool:
    """Tell whether a default of `base` was taken away: no --set does that."""
    return bool(set(base.to_dict()) - set(spec.to_dict()) - set(HOW_LAZY))


def _toml(value: Any) -> str:
    """Write a value as the right side of --set: a bare word where it means itself, else TOML on one line."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value, re.ASCII) and parse_value(value) == value:
        return value
    return _inline(value)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inline(key)} = {_inline(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")
