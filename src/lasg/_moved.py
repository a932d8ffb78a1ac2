"""Old names of lasg 0.1: importable for one version, with a DeprecationWarning that says the new one (`_moved.txt`)."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


def _read() -> tuple[dict[str, str], dict[str, str]]:
    """Return the modules that moved, and the names within modules."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    modules, names = text.split("# Names in modules\n")
    tables = ([line.split() for line in part.splitlines() if line[0] != "#"] for part in (modules, names))
    first, second = ({old: new for old, new in table} for table in tables)  # noqa: C416 (lists of two)
    return first, second


MODULES, NAMES = _read()
PACKAGES = {old.rpartition(".")[0] for old in MODULES if old.startswith(("lasg.engines", "lasg.experiments"))}
RENAMED_IN = {old.rpartition(".")[0] for old in NAMES} - MODULES.keys() - {"lasg"}
"""Modules that are where they were, with names in them that are not."""


def find(old: str) -> Any:
    """Return what an old dotted name means now, with a warning."""
    new = NAMES[old]
    warnings.warn(f"{old} is {new} now: the old name goes with the next version", DeprecationWarning, stacklevel=3)
    *_, last = parts = new.split(".")
    owner: Any = importlib.import_module(".".join(parts[:-1]))
    return getattr(owner, last)


def _getattr_of(module: str) -> Callable[[str], Any]:
    """Return a module's __getattr__, which knows its old names."""

    def __getattr__(name: str) -> Any:  # noqa: N807
        old = f"{module}.{name}"
        if old in NAMES:
            return find(old)
        if module in MODULES and not name.startswith("__"):
            return getattr(importlib.import_module(MODULES[module]), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


class _Loader(Loader):
    """Makes the module of an old name, or adds old names to one that is there."""

    def __init__(self, there: Loader | None) -> None:
        self.there = there

    def __getattr__(self, name: str) -> Any:
        """Do all else as the real loader does: sources, resources, `python -m`."""
        if name == "there" or self.there is None:
            raise AttributeError(name)
        return getattr(self.there, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the real loader do it, if there is one."""
        return None if self.there is None else self.there.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module."""
        name = module.__name__
        if self.there is not None:
            self.there.exec_module(module)
        elif name in MODULES:
            new = MODULES[name]
            text = f"{name} is {new} now: the old name goes with the next version"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        module.__dict__.setdefault("__getattr__", _getattr_of(name))


class _Finder(MetaPathFinder):
    """Finds modules by their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module that moved, or in which names were changed; None: it is nobody's here."""
        if fullname in MODULES or fullname in PACKAGES:
            return ModuleSpec(fullname, _Loader(None), is_package=fullname in PACKAGES)
        if fullname in RENAMED_IN:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader)
            return spec
        return None


def install() -> None:
    """Let old names be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
