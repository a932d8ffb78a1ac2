"""Every test has its own cache: the user's is neither read nor written."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""The paper and the real data lie beside the project."""
TOGETHER = (
    "tests/adapters/test_accelerate.py",
    "tests/adapters/test_huggingface.py",
    "tests/adapters/test_lightning.py",
    "tests/runs/test_on_ranks.py",
    "tests/golden/test_golden.py",
    "tests/flower/test_deployed.py",
    "tests/report/test_browser.py",
    "tests/report/test_figures.py",
    "tests/test_walks.py",
)
"""Tests of these share what takes long to make: they run in one process, and first, since they also wait a lot."""


def pytest_configure() -> None:
    """Let Ctrl-C work in a suite that a shell started in the background: there it is ignored, here and in children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Take two processes per core: much of their time, tests wait for processes that they started."""
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand tests out one by one, those of `TOGETHER` a file at a time."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file in TOGETHER else nodeid

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Share one cache among the tests of a pytest process, so that real data are prepared once."""
    folder = tmp_path_factory.getbasetemp() / "lasg-cache"
    monkeypatch.setenv("LASG_CACHE", str(folder))
    monkeypatch.delenv("LASG_DATA", raising=False)
    return folder


@pytest.fixture
def real_data() -> Path:
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"the real data files are not in {folder}")
    return folder


@pytest.fixture
def paper_tables() -> Path:
    path = SHARED / "paper" / "tables.csv"
    if not path.is_file():
        pytest.skip(f"the paper's tables are not at {path}")
    return path


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report and write a checkpoint after every round."""
    monkeypatch.setattr("lasg.runs.runner.REPORT_SECONDS", 0.0)
    monkeypatch.setattr("lasg.runs.runner.CHECKPOINT_SECONDS", -1.0)
