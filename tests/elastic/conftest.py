"""torchft's lighthouse, and ranks in processes that have imported what takes long."""

import importlib.util
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

import pytest

from lasg.runs.elastic_demo import lighthouse, port_of


@pytest.fixture(scope="session", autouse=True)
def preloaded() -> None:
    if importlib.util.find_spec("torchft") is None:
        pytest.skip("torchft is not installed: make test-all")
    modules = ["lasg.loops.elastic_loop", "torchft.manager", "pytest"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    forkserver.ensure_running()


@pytest.fixture
def at() -> Iterator[str]:
    started = lighthouse(0, heartbeat=1.5, join=3.0)
    yield f"127.0.0.1:{port_of(started)}"
    started.shutdown()


class Crew:
    """Ranks as processes, and what they say."""

    def __init__(self, at: str) -> None:
        self.at = at
        self._context = multiprocessing.get_context("forkserver")
        self.processes: dict[str, Any] = {}
        self.pipes: dict[str, Any] = {}

    def start(self, name: str, **options: Any) -> None:
        from tests.elastic.rank import run

        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=run, args=(name, self.at, theirs), kwargs=options, daemon=True)
        process.start()
        theirs.close()
        self.processes[name], self.pipes[name] = process, ours

    def hear(self, name: str, seconds: float = 60.0) -> Any:
        """Return the next thing that a rank says."""
        assert self.pipes[name].poll(seconds), f"{name} says nothing"
        return self.pipes[name].recv()

    def until(self, name: str, done: Any) -> list[Any]:
        """Return what a rank says, up to what is looked for."""
        said = [self.hear(name)]
        while not done(said[-1]):
            said.append(self.hear(name))
        return said

    def signal(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)


@pytest.fixture
def crew(at: str) -> Iterator[Crew]:
    made = Crew(at)
    yield made
    for process in made.processes.values():
        process.kill()
