"""A Flower app to start from, which runs as it is."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from lasg.errors import LasgError

NAME = "lazyapp"


def create(folder: Path) -> list[Path]:
    """Write the app into a new folder, whose name is the app's; return its files."""
    name = folder.name.replace("-", "_")
    if not name.isidentifier():
        raise LasgError(f"{folder.name!r} cannot be the name of a Python package: take letters, digits and _")
    if folder.exists() and any(folder.iterdir()):
        raise LasgError(f"{folder} is there already, and not empty")
    template = resources.files("lasg.flower") / "template"
    written = []
    with resources.as_file(template) as source:
        for path in sorted(source.rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            target = folder / str(path.relative_to(source)).replace(NAME, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text().replace(NAME, name))
            target.chmod(path.stat().st_mode & 0o777)
            written.append(target)
    return written
