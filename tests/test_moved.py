"""Names of lasg 0.1 are importable from their old place, with a warning that says the new one."""

from __future__ import annotations

import importlib
import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

import lasg
from lasg import _moved


def resolve(dotted: str) -> object:
    owner, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(owner), name)


@pytest.mark.parametrize("old", sorted(_moved.NAMES))
def test_an_old_name_is_the_new_one_with_a_warning(old: str) -> None:
    with pytest.warns(DeprecationWarning, match="the old name goes with the next version") as warned:
        found = resolve(old)
    assert found is resolve(_moved.NAMES[old])
    assert any(f"{old} is {_moved.NAMES[old]} now" in str(one.message) for one in warned)


@pytest.mark.parametrize("old", sorted(_moved.MODULES))
def test_an_old_module_has_the_new_ones_names(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is {_moved.MODULES[old]} now"):
        module = importlib.import_module(old)
    new = importlib.import_module(_moved.MODULES[old])
    public = [name for name, value in vars(new).items() if getattr(value, "__module__", "") == new.__name__]
    moved_away = {name for name in public if f"{old}.{name}" in _moved.NAMES}
    assert all(getattr(module, name) is getattr(new, name) for name in set(public) - moved_away)


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        lasg.Nonsense  # noqa: B018
    sys.modules.pop("lasg.engines.links", None)
    with pytest.warns(DeprecationWarning, match="lasg.transports.links"):
        module = importlib.import_module("lasg.engines.links")
    assert not hasattr(module, "Nonsense")


def test_the_warning_points_at_the_line_that_imports() -> None:
    code = "import warnings\nwarnings.simplefilter('always')\nfrom lasg.engines.rounds import Hosted\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "<string>:3: DeprecationWarning: lasg.engines.rounds is lasg.core.training now" in done.stderr


def test_lasg_runs_can_still_be_called(tmp_path: Path) -> None:
    stored = lasg.train(lasg.task("breast-cancer").spec("sgd", iterations=3), folder=tmp_path / "run")
    with pytest.warns(DeprecationWarning, match="lasg.read_runs"):
        (run,) = lasg.runs(tmp_path)  # type: ignore[operator]
    assert run.spec == stored.spec


def test_there_are_about_fifteen_public_names() -> None:
    names = [name for name in lasg.__all__ if name != "__version__"]
    assert len(names) <= 20
    assert all(hasattr(lasg, name) for name in names)


def test_lasg_runs_can_be_the_first_thing_that_is_used(tmp_path: Path) -> None:
    code = f"import lasg\ntry:\n    lasg.runs({str(tmp_path)!r})\nexcept lasg.LasgError as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "no stored runs" in done.stdout


def test_modules_with_old_names_keep_their_resources_and_can_be_run() -> None:
    assert [path.name for path in importlib.resources.files("lasg.problems").iterdir() if path.name == "module.py"]
    subprocess.run([sys.executable, "-m", "lasg.core.server"], check=True, timeout=60)
