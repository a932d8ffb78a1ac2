"""A Flower app to start from, which runs as it is."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path

from lasg.errors import LasgError
from lasg.runs.files import write_new

PACKAGE, PROJECT = "lazyapp", "lazy-app"
"""What the template is called, as a Python package and as a project: Flower takes no _ in the latter."""


def create(folder: Path | str) -> list[Path]:
    """Write the app into a new folder, whose name is the app's; return its files."""
    folder = Path(folder)
    names = {PACKAGE: folder.name.replace("-", "_"), PROJECT: folder.name.replace("_", "-")}
    if not re.fullmatch("[A-Za-z][A-Za-z0-9-]{0,31}", names[PROJECT]) or keyword.iskeyword(names[PACKAGE]):
        raise LasgError(
            f"{folder.name!r} cannot be the name of an app: take a letter, then letters, digits and -, 32 at most, "
            "and no word of Python's own"
        )
    if folder.exists() and any(folder.iterdir()):
        raise LasgError(f"{folder} is there already, and not empty")
    template = resources.files("lasg.flower") / "template"
    files = {}
    with resources.as_file(template) as source:
        for path in sorted(source.rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            name = _renamed(str(path.relative_to(source)), names)
            files[name] = _renamed(path.read_text(), names).encode(), path.stat().st_mode & 0o777
    return write_new(folder, files)


def _renamed(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text
