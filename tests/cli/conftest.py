"""The command line, called in this process or as a user calls it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lasg.cli.main import main
from lasg.data.sources import FILES


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


Lasg = Callable[..., Done]

LABEL = re.compile(r"\b(eqn|thm|lemma|assump|alg|fig|tab|sec):[A-Za-z]|\\(eta|theta|nabla|frac|sum)\b")
"""How the paper's source names its parts."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, without network: nothing listens on port 1, so that a download fails at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name, source in FILES.items():
        monkeypatch.setitem(FILES, name, replace(source, urls=(f"http://127.0.0.1:1/{name}",)))


@pytest.fixture
def lasg(capsys: pytest.CaptureFixture[str]) -> Lasg:
    """Call the command line in this process."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        done = Done(code, *capsys.readouterr())
        if "--json" not in arguments:
            assert not LABEL.search(done.out + done.err), "what people read has no LaTeX labels"
        return done

    return call


def environment() -> dict[str, str]:
    """Return this environment with warnings shown, a plain terminal of 80 columns, and no way out to the network."""
    more = {"PYTHONWARNINGS": "default", "COLUMNS": "80", "TERM": "dumb"}
    proxies = {"https_proxy": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
    return {**os.environ, **more, **proxies}


def spawn(*arguments: object, code: str | None = None) -> Done:
    """Call `python -m lasg` as a user does, or `python -c code`."""
    how = ["-m", "lasg"] if code is None else ["-c", code]
    command = [sys.executable, *how, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment())
    return Done(done.returncode, done.stdout, done.stderr)


PROGRESS = re.compile(r".+: ((\d+ of \d+ runs, )?\d+ %; .*loss .*|done in [\d.]+ \w+|\d+( of \d+)? MB)")
"""What a command that takes more than five seconds says meanwhile."""


def complaints(done: Done) -> list[str]:
    """Return what a command printed on standard error, besides its progress."""
    return [line for line in done.err.splitlines() if not PROGRESS.fullmatch(line)]


def said(done: Done) -> str:
    """Return the one line that a failed command printed, after looking that it is one."""
    lines = complaints(done)
    assert len(lines) == 1, done.err
    assert lines[0].startswith("lasg: ")
    assert "Traceback" not in done.err + done.out
    return lines[0]
