"""Runs of the caller's own problem, rule or codec, stored like any other: reports and comparisons read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lasg.core.algorithms import Algorithm
from lasg.core.algorithms import algorithm as algorithm_named
from lasg.core.own_codec import CodecLike
from lasg.core.rules import Rule
from lasg.data.raw_files import path_or_none
from lasg.errors import LasgError
from lasg.runs import composition, factories, runner, store
from lasg.runs.spec import OWN, Spec, from_dict
from lasg.runs.status import Report
from lasg.runs.store import Run


def train(
    problem: factories.Problem | Spec,
    algorithm: str | None = None,
    *,
    folder: Path | str,
    rule: Rule | str | None = None,
    codec: CodecLike | str | None = None,
    name: str | None = None,
    fresh: bool = False,
    report: Report | None = None,
    data_dir: Path | str | None = None,
    **settings: Any,
) -> Run:
    """Train a problem of your own, or that of a spec, and store the run in `folder`.

    `algorithm` is lasg-wk2 or the spec's by default; `rule` and `codec` replace its own: a name, a `lasg.Rule`, an
    object with encode and decode. Called again it goes on with a run that was stopped, and returns one that is done;
    `fresh` runs it again. `settings` are those of a spec that are not the problem's: eta, D, c, H (with a rule or
    codec, the local steps), bits, iterations, until, evaluate, optimizer, clip, patience, threads, ... (docs/spec.md).
    `name` is the task's name in reports. `data_dir` is where the data of a spec lies.
    """
    folder = Path(folder)
    data_dir = path_or_none(data_dir)
    if data_dir is not None and not isinstance(problem, Spec):
        raise LasgError("data_dir goes with a spec: a problem of your own has its data already")
    values, own = _values(problem, algorithm, name, settings)
    if rule is not None or codec is not None:
        base = values.composition if algorithm is None else algorithm_named(algorithm)
        chosen = composition.compose(_with_steps(base, settings), rule, codec, values.to_dict())
        values = values.but(**chosen)
    parts: dict[str, Any] = {"report": report, "problem": own, "data_dir": data_dir}
    parts["rule"] = None if rule is None else composition.find_rule(rule)
    parts["codec"] = None if codec is None else composition.find_codec(codec)
    if fresh or not (folder / store.META).is_file():
        return runner.run(values, folder, **parts)
    _check_same(store.read(folder), values, factories.identity(values, data_dir, own))
    return runner.resume(folder, **parts)


def _values(
    problem: factories.Problem | Spec, algorithm: str | None, name: str | None, settings: dict[str, Any]
) -> tuple[Spec, factories.Problem | None]:
    """Return the spec of a run, and the problem where it is the caller's own."""
    if isinstance(problem, Spec):
        given = {"algorithm": algorithm, "task": name}
        return problem.but(**{key: value for key, value in given.items() if value is not None}, **settings), None
    if isinstance(problem, str):
        raise LasgError(f"train takes a problem or a spec: of a task, lasg.task({problem!r}).spec('lasg-wk2')")
    wrong = [key for key in settings if key in factories.PROBLEM]
    if wrong:
        raise LasgError(f"{wrong[0]} is the problem's own business: set it there, not here")
    fixed = {"data": OWN, "partition": OWN, "workers": problem.workers, "lam": problem.lam, "dtype": str(problem.dtype)}
    fixed |= {"seed": problem.seed, "batch": problem.share}
    return from_dict({"task": name or OWN, "algorithm": algorithm or "lasg-wk2", **fixed, **settings}), problem


def _with_steps(base: Algorithm, settings: dict[str, Any]) -> Algorithm:
    """Return an algorithm with the local steps that were asked for: H is no idle setting beside a rule or codec."""
    if "H" not in settings or base.local:
        return base
    if base.own_steps not in {None, 1, settings["H"]}:
        raise LasgError(f"{base.name} has {base.own_steps} local steps, and H = {settings['H']}: leave one of them out")
    return replace(base, own_steps=settings["H"])


def _check_same(stored: Run, spec: Spec, identity: str) -> None:
    """Refuse to go on with a run of another problem, rule, codec or other settings; say what differs."""
    there, here = stored.spec.to_dict(), spec.to_dict()
    differing = [key for key in here | there if there.get(key) != here.get(key)]
    # The algorithm's name follows from its parts, so these say more.
    first = next((key for key in ("own_rule", "own_codec", *differing) if key in differing), None)
    if first is None and stored.meta["data_sha256"] == identity:
        return
    what = f"{first}: {_brief(there.get(first))} there, {_brief(here.get(first))} here" if first else "data or start"
    raise LasgError(
        f"{stored.folder} holds a run of another problem or of other settings ({what}): "
        "take another folder, or fresh=True to run it again"
    )


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "fingerprint" in value:
        return f"{value['name']} with fingerprint {value['fingerprint']}"
    return "none" if value is None else str(value)
