"""What the docs show is there: files that are linked, names in Python, commands and their options."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

import lasg
from lasg import _moved
from lasg.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
OLD_NAMES = {"migration.md", "CHANGELOG.md"}
"""Pages that speak of what is no more."""


def of_page(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language; "" is none."""
    fenced = re.findall(r"^```([^\n]*)\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for kind, block in fenced if kind == language]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=of_page)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    found = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    wrong = []
    for link in found:
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def exists(dotted: str) -> bool:
    """Tell whether a dotted name of lasg is a module, or something in one."""
    *parents, last = dotted.split(".")
    try:
        importlib.import_module(dotted)
    except lasg.LasgError:
        return True  # an adapter for a library that is not installed; make test-all installs it
    except ModuleNotFoundError:
        return exists(".".join(parents)) and hasattr(_object(".".join(parents)), last)
    return True


def _object(dotted: str) -> Any:
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        parent, _, last = dotted.rpartition(".")
        return getattr(_object(parent), last)


@pytest.mark.parametrize("path", [path for path in PAGES if path.name not in OLD_NAMES], ids=of_page)
def test_every_name_of_lasg_that_a_page_shows_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    names = set(re.findall(r"(?<![\w./-])lasg(?:\.[A-Za-z_]\w*)+", text))
    assert [name for name in sorted(names) if name in _moved.NAMES or not exists(name)] == []


def test_the_migration_page_has_every_module_and_top_level_name_that_moved() -> None:
    text = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(lasg[\w.]*)` \| `(lasg[\w.]*)", text, re.MULTILINE))
    assert _moved.MODULES.items() <= rows.items()
    assert {old for old in _moved.NAMES if old.count(".") == 1} <= rows.keys()
    assert all(exists(new) for new in rows.values())


def commands(path: Path) -> Iterator[list[str]]:
    """Return the commands of lasg that a page shows: lines of blocks without a language, and code within sentences."""
    text = path.read_text(encoding="utf-8")
    inside = [line for block in blocks(path, "") for line in block.splitlines()]
    inside += re.findall(r"^    (lasg .*)$", text, re.MULTILINE)
    code = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    inside += [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", code)]
    for line in inside:
        for part in re.split(r" && | -m ", line.partition(" #")[0]):
            found = re.match(r"(?:[A-Z_]+=\S+ )*lasg ([a-z].*)", part.strip())
            if found is not None:
                yield shlex.split(found[1])


def unknown(words: list[str]) -> str:
    """Say which word of a command is no command or option of lasg's; nothing if all are."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return name
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = [word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)]
    return next((option for option in options if option not in known | {"--help"}), "")


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CHANGELOG.md"], ids=of_page)
def test_every_command_and_option_that_a_page_shows_exists(path: Path) -> None:
    assert [(unknown(words), " ".join(words)) for words in commands(path) if unknown(words)] == []


def test_the_check_of_commands_finds_what_is_wrong() -> None:
    assert len(list(commands(ROOT / "docs" / "command-line.md"))) > 20
    assert len(list(commands(ROOT / "README.md"))) > 5
    assert unknown(["compare", "digits", "-a", "sgd", "--seeds", "3"]) == ""
    assert unknown(["compare", "digits", "--sedes", "3"]) == "--sedes"
    assert unknown(["list", "taskz"]) == "taskz"


FILES = re.compile(r"(?<![\w./-])((?:examples|benchmarks)/[\w/.-]+\.(?:py|toml|ipynb))")
MODULES = re.compile(r"python -m (tests[\w.]*)")


@pytest.mark.parametrize("path", [path for path in PAGES if path.name not in OLD_NAMES], ids=of_page)
def test_every_script_module_and_make_target_that_a_page_shows_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    code = "\n".join([*blocks(path, ""), *re.findall(r"`([^`\n]+)`", text)])
    missing = [name for name in FILES.findall(text) if not (ROOT / name).is_file()]
    missing += [name for name in MODULES.findall(text) if not exists_here(name)]
    missing += [name for name in re.findall(r"^make ([a-z-]+)", code, re.MULTILINE) if name not in targets]
    assert missing == []


def exists_here(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_the_python_of_the_extension_guide_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = blocks(ROOT / "docs" / "extending.md", "python")
    assert len(found) >= 4
    for code in found:
        module = ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", module)  # dataclasses look there
        exec(compile(code, "docs/extending.md", "exec"), vars(module))


@pytest.mark.parametrize("path", PAGES, ids=of_page)
def test_the_python_of_every_page_is_python(path: Path) -> None:
    for code in blocks(path, "python"):
        compile(code, of_page(path), "exec")


def test_the_version_has_a_dated_section_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(lasg.__version__)} \(\d{{4}}-\d\d-\d\d\)$", text, re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=of_page)
def test_pages_have_no_word_that_makes_a_reader_stumble(path: Path) -> None:
    prose = re.sub(
        r"^```.*?^```|`[^`]*`|\]\([^)]*\)", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    assert re.findall(r"\b(?:anew|whom|mend(?:s|ed|ing)?)\b", prose) == []
