"""The parts of the reference that are made from the code: commands, keys of a spec, links, algorithms."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import typer.main

import lasg
from lasg.analysis import scoreboard
from lasg.analysis.races import RACES
from lasg.cli.main import app
from lasg.core.settings import Settings
from lasg.report import scoreboard_table
from lasg.runs.spec import Spec

ROOT = Path(__file__).resolve().parents[2]


def commands() -> str:
    """Return every command of lasg with its arguments and options, as Markdown."""
    return "\n".join(_command("lasg", typer.main.get_command(app)))


def _command(name: str, command: Any) -> Iterator[str]:
    inside = getattr(command, "commands", {})
    if name != "lasg":
        yield from (f"## `{name}`", "", _prose(command.help or ""), "")
        yield from _parameters(name, command)
    for word, one in inside.items():
        yield from _command(f"{name} {word}", one)


def _parameters(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        return
    shown = [one for one in command.params if one.name != "help"]
    words = [one.make_metavar() if one.param_type_name == "argument" else "" for one in shown]
    yield from ("```", " ".join([name, *filter(None, words), "[OPTIONS]"]), "```", "")
    yield from ("| argument or option | default | meaning |", "| --- | --- | --- |")
    for one in shown:
        is_argument = one.param_type_name == "argument"
        text = one.make_metavar() if is_argument else ", ".join([*one.opts, *one.secondary_opts])
        if not is_argument and not one.is_flag:
            text += f" {one.make_metavar()}"
        absent = one.default is None or one.default in ([], (), "", False)
        default = "required" if one.required else "" if absent else f"`{one.default}`"
        text = text.replace(" RANGE", "").replace("|", "\\|")
        yield f"| `{text}` | {default} | {_cell(one.help or '')} |"
    yield ""


def _prose(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text).replace("\f", "")).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def keys() -> str:
    """Return every key of a spec with its type, default and meaning, as Markdown."""
    meanings = {**_meanings(Settings), **_meanings(Spec)}
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for one in fields(Spec):
        kind = str(one.type).replace(" | None", "").replace("|", "\\|")
        factory: Any = one.default_factory
        value = factory() if factory is not MISSING else one.default
        absent = value is MISSING or value is None or value == {}
        default = "required" if value is MISSING else "" if absent else f"`{value!r}`"
        lines.append(f"| `{one.name}` | `{kind}` | {default} | {_cell(meanings.get(one.name, ''))} |")
    return "\n".join(lines)


def _meanings(owner: type) -> dict[str, str]:
    """Read the strings that stand below the fields of a class."""
    (body,) = [node.body for node in ast.parse(inspect.getsource(owner)).body if isinstance(node, ast.ClassDef)]
    found = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[field.target.id] = value.value
    return found


EXTENSION_POINTS = {
    "A rule": ["lasg.core.rules.Record"],
    "A codec": ["lasg.core.codecs.StatefulCodec"],
    "A transport": ["lasg.core.transport.Transport", "lasg.core.messages.Request", "lasg.core.messages.Uploads"],
    "A loop's figures": ["lasg.loops.tracking.track"],
    "Adapters": [
        "lasg.loops.huggingface.LazyCallback",
        "lasg.loops.accelerate.LazyLocalSGD",
        "lasg.loops.lightning.LazyStrategy",
        "lasg.loops.lightning.FabricLazyStrategy",
    ],
}
"""What is not at the top and may be used all the same."""


def api() -> str:
    """Return directives for the public names, and for the extension points."""
    lines = ["## Public names", ""]
    for name in lasg.__all__:
        if name != "__version__":
            lines += _documented(f"lasg.{name}")
    for title, names in EXTENSION_POINTS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += _documented(name)
    return "\n".join(lines)


def _documented(dotted: str) -> list[str]:
    module, _, name = dotted.rpartition(".")
    if module.startswith("lasg.loops.") and not _can_import(module):
        return [f"`{dotted}`: build the documentation with its library installed to see it here.", ""]
    kind = "autoclass" if inspect.isclass(getattr(importlib.import_module(module), name)) else "autofunction"
    return ["```{eval-rst}", f".. {kind}:: {dotted}", "```", ""]


def _can_import(module: str) -> bool:
    try:
        importlib.import_module(module)
    except lasg.LasgError:
        return False
    return True


SHOWN_EXAMPLES = {
    "A network, a rule, a codec": ["own_network.py", "own_rule.py", "own_codec.py"],
    "On the ranks of torchrun": ["torchrun/ddp.py", "torchrun/lazy.py", "torchrun/local_steps.py"],
    "Trainers of other libraries": ["adapters/trainer.py", "adapters/local_sgd.py", "adapters/strategy.py"],
    "Parts of your own": ["extending/rule.py", "extending/codec.py", "extending/estimator.py", "extending/pipes.py"],
}


def examples() -> str:
    """Return the example programs."""
    lines = []
    for title, names in SHOWN_EXAMPLES.items():
        lines += [f"## {title}", ""]
        for name in names:
            text = (ROOT / "examples" / name).read_text(encoding="utf-8")
            lines += [f"### `examples/{name}`", "", "```python", text.rstrip(), "```", ""]
    return "\n".join(lines)


def results() -> str:
    """Return the list of result files, with a link to each."""
    folder = ROOT / "results"
    found = sorted(path for path in folder.rglob("*") if path.suffix == ".csv")
    return "\n".join(f"- [{path.relative_to(folder)}](../{path.relative_to(ROOT)})" for path in found)


def races() -> str:
    """Return the table of every race, from the committed results, and which races have none."""
    lines: list[str] = []
    without = []
    for race in RACES.values():
        rows = scoreboard.read(ROOT / "results" / "scoreboard" / f"{race.name}.csv")
        if not rows:
            without.append(race.name)
            continue
        found = scoreboard.standings(rows)
        ends = " and ".join(f"{value:,.0f} {key}" for key, value in race.until.items())
        words = scoreboard_table.title(race, found).rpartition("(")[2].replace(")", "")
        lines += [f"## {race.name}", "", f"To the loss that `{race.reference}` has after {ends}: {words}.", ""]
        names = [_cell(name) for name in scoreboard_table.head()]
        lines += [f"| {' | '.join(names)} |", f"| --- | --- |{' ---: |' * (len(names) - 2)}"]
        for row in scoreboard_table.cells(found, race.reference):
            lines.append(f"| {' | '.join(map(_cell, row))} |")
        lacking = scoreboard_table.missing([race], {race.name: rows})
        lines += ["", *(f"{_cell(line)}.\n" for line in lacking)]
    lines += [_cell(scoreboard_table.CAPTION), ""]
    if without:
        lines += ["## Without results yet", "", ", ".join(f"`{name}`" for name in without) + "."]
    return "\n".join(lines)


GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "keys": keys,
    "api": api,
    "examples": examples,
    "results": results,
    "races": races,
}
"""What a page may ask for with `<!-- generated: NAME -->`."""
