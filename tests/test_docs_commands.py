"""Every command that the docs show is taken, with its tasks, algorithms and settings, up to where work begins."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lasg.cli.main import main
from lasg.errors import LasgError
from tests.test_docs import PAGES, ROOT, commands, of_page

TRAINS = ("run", "compare", "tune", "demo", "figure", "paper", "scoreboard", "pretrain")
"""Commands whose work begins in `execute`, which is given what they read."""
MODULES = ("training", "figure", "paper", "scoreboard", "running")
MEANT = {
    "TASK": "digits",
    "ALGORITHM": "lasg-wk2",
    "ALGORITHMS": "sgd,lasg-wk2",
    "NAME": "mnist-lr",
    "N": "4",
    "X": "0.2",
    "ETA": "0.1",
    "THETA": "1",
    "PATH": "my.csv",
    "FOLDER": "my-images",
}
"""What a page writes for what the reader has."""


class ReachedError(LasgError):
    """The command had nothing to complain of, and would begin to work."""


def shown() -> list[tuple[str, str]]:
    found = {
        (of_page(path), shlex.join(words))
        for path in PAGES
        if path.name != "CHANGELOG.md"
        for words in commands(path)
        if words[0] in TRAINS and len(words) > 1 and "..." not in words and words[1] != "--engine"
    }
    return sorted(found)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with what a reader is taken to have: a spec, some data, a folder of data sets."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("SPEC.toml", "spec.toml", "advice.toml", "safe.toml"):
        shutil.copy(ROOT / "examples" / "spec.toml", name)
    for name in ("DIR", "FOLDER", "my-images"):
        Path(name).mkdir()
    Path("results").symlink_to(ROOT / "results")
    Path("my.csv").write_text("a,NAME\n1,0\n2,1\n")
    Path("my-data.svm").write_text("0 1:1\n1 1:2\n")
    Path("sites.toml").write_text("latency = 0.1\nup = 1e6\ndown = 1e6\ngradient = 0.01\nshared = false\n")

    def execute(*_: Any, **__: Any) -> NoReturn:
        raise ReachedError("reached")

    for module in MODULES:
        found = importlib.import_module(f"lasg.cli.{module}")
        if hasattr(found, "execute"):
            monkeypatch.setattr(found, "execute", execute)
    return tmp_path


def meant(words: list[str]) -> list[str]:
    """Put what a reader has in the place of words like TASK."""
    found = []
    for before, text in zip(["", *words], words, strict=False):
        names = {**MEANT, "NAME": "lasg-wk2"} if before == "-a" else MEANT
        found.append(re.sub(r"\b[A-Z]+\b", lambda word: names.get(word[0], word[0]), text))  # noqa: B023
    return found


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("page", sorted({page for page, _ in shown()}))
def test_every_command_that_a_page_shows_is_taken(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for _, line in (one for one in shown() if one[0] == page):
        capsys.readouterr()
        code = main(meant(shlex.split(line)))
        said = capsys.readouterr().err.strip()
        if code and said != "lasg: reached":
            wrong.append((line, said))
    assert wrong == []


@pytest.mark.usefixtures("reader")
def test_a_command_with_a_wrong_word_is_not_taken(capsys: pytest.CaptureFixture[str]) -> None:
    for line, said in (
        ("compare digitz -a sgd", "digitz"),
        ("compare digits -a sdg", "sdg"),
        ("run digits -a sgd --set ete=1", "ete"),
        ("run digits -a sgd --until los=1", "los"),
    ):
        capsys.readouterr()
        assert main(line.split()) == 2
        assert said in capsys.readouterr().err
    assert len(shown()) > 50
