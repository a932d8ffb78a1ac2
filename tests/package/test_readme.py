"""Every command of the README runs, and prints the numbers that the README has. make test-all runs this."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.test_docs import blocks

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ELSEWHERE = ("git clone URL", "make demo", "pip install", "source .venv/bin/activate")
"""What a fresh clone and `make dist` try: a download, and the installs."""
LINES = [line.strip() for block in blocks(ROOT / "README.md", "") for line in block.splitlines() if line.strip()]

if os.environ.get("LASG_TEST_ALL") != "1":
    pytest.skip("takes minutes: make test-all runs it", allow_module_level=True)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder in which a reader types the commands, one after another."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "results").symlink_to(ROOT / "results")
    yield folder
    for process in left_behind(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def left_behind(folder: Path) -> list[int]:
    """Return the processes that `flwr run` leaves for the next run: its local SuperLink, and what that began."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"FLWR_HOME={folder}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def typed(line: str, folder: Path) -> str:
    """Return what a command prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "OMP_NUM_THREADS": "1", "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    command = line.partition(" #")[0]
    done = subprocess.run(
        ["bash", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **own, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        timeout=590,
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith(ELSEWHERE)])
def test_a_command_of_the_readme_runs_and_prints_what_is_said(line: str, reader: Path) -> None:
    printed = typed(line, reader)
    promised = re.search(r"# prints: ([\d.]+) MB sent by rank 0; ([\d.]+) % right", line)
    if promised is not None:
        found = re.search(r"([\d.]+) MB sent by rank 0; ([\d.]+) % right", printed)
        assert found is not None
        assert float(found[1]) == pytest.approx(float(promised[1]), rel=0.05)
        assert float(found[2]) == pytest.approx(float(promised[2]), abs=1)
    if "-o report.html" in line:
        assert (reader / "report.html").stat().st_size > 1_000_000


@pytest.mark.parametrize(
    ("command", "numbers"),
    [
        ("lasg demo", ["7.8x", "30x"]),
        ("lasg scoreboard --task mnist-nn-heterogeneous-4 --show", ["184x"]),
        ("lasg scoreboard --task text-lm --show", ["lasg-local", "diloco"]),
    ],
)
def test_a_number_of_the_table_is_printed_by_its_command(command: str, numbers: list[str], reader: Path) -> None:
    assert f"`{command}`" in README
    printed = typed(command, reader)
    assert [number for number in numbers if number not in printed] == []
