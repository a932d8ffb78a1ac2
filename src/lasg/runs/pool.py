"""Many runs at once, one process per core. A run's numbers do not depend on how many run beside it.

Each process has a pipe of its own and shares no lock with anybody: whoever is killed, at whatever moment, holds
nothing that another one waits for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lasg.errors import LasgError
from lasg.runs.runner import obtain
from lasg.runs.spec import Spec
from lasg.runs.status import Report, Status
from lasg.runs.stopping import block, ignore, on_stop
from lasg.runs.store import Run

STOP_SECONDS = 0.1
"""How long a Ctrl-C may wait to be seen."""


@dataclass
class Worker:
    """A process, our end of its pipe, and which of the specs it runs."""

    process: Any
    pipe: Connection
    index: int | None = None


def cores() -> int:
    """Return how many processes this machine runs at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def obtain_all(
    specs: Sequence[Spec],
    out: Path | str,
    *,
    jobs: int = 1,
    fresh: bool = False,
    data_dir: Path | str | None = None,
    report: Report | None = None,
) -> list[Run]:
    """Run the specs, or read those that are stored, and return their runs in order.

    With jobs > 1 processes are spawned: call it from under `if __name__ == "__main__":` in a script.
    """
    obtain_here = partial(obtain, out=out, fresh=fresh, data_dir=data_dir)
    if jobs <= 1 or len(specs) == 1:
        return [obtain_here(spec, report=report) for spec in specs]
    stopped: list[bool] = []
    workers: list[Worker] = []
    # A KeyboardInterrupt between any two instructions could leave a process that nobody knows of.
    with on_stop(lambda: stopped.append(True)):
        try:
            _start(workers, min(jobs, len(specs)), obtain_here)
            runs = _follow(workers, specs, stopped, report)
        finally:
            _end(workers)
    if stopped:
        raise KeyboardInterrupt
    return [runs[i] for i in range(len(specs))]


def _start(workers: list[Worker], count: int, obtain_one: Callable[..., Run]) -> None:
    """Start processes that Ctrl-C does not reach, not even while they import: the parent alone answers it."""
    context = multiprocessing.get_context("spawn")
    if os.name == "posix":
        resource_tracker.ensure_running()  # the first start would do it, and unblock the signal on its way
    with block(signal.SIGINT):
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, obtain_one))
            process.start()
            workers.append(Worker(process, ours))
            theirs.close()  # theirs alone is left, so that their end is seen


def _follow(
    workers: Sequence[Worker], specs: Sequence[Spec], stopped: Sequence[bool], report: Report | None
) -> dict[int, Run]:
    """Hand out the specs and pass on what the processes report, until all ran, one failed or the user stops it."""
    waiting = deque(enumerate(specs))
    runs: dict[int, Run] = {}
    while len(runs) < len(specs) and not stopped:
        for worker in workers:
            if worker.index is None and waiting:
                worker.index, spec = waiting.popleft()
                with _wrap_death(worker):
                    worker.pipe.send(spec)
        busy = {worker.pipe: worker for worker in workers if worker.index is not None}
        for pipe in connection.wait(list(busy), STOP_SECONDS):
            worker = busy[pipe]  # type: ignore[index]
            message = _receive(worker)
            if isinstance(message, Run):
                assert worker.index is not None
                runs[worker.index], worker.index = message, None
            elif report is not None:
                report(message)
    return runs


def _receive(worker: Worker) -> Status | Run:
    """Return the next message of a process; raise what it failed with, or that it ended."""
    with _wrap_death(worker):
        message = worker.pipe.recv()
    if isinstance(message, Exception):
        raise message
    assert isinstance(message, Status | Run)
    return message


@contextmanager
def _wrap_death(worker: Worker) -> Iterator[None]:
    """Say what became of a process that is not there any more."""
    try:
        yield
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode
        if code < 0:
            how = f"was killed (signal {-code}), perhaps for want of memory: take fewer --jobs; run again to go on"
        else:
            how = (
                f"ended with exit code {code} before its run did: what it printed says why. In a script, call this "
                'from under `if __name__ == "__main__":`'
            )
        raise LasgError(f"a process {how}") from None


def _end(workers: Sequence[Worker]) -> None:
    """End the processes at once: those that ran something have their checkpoints, the others nothing to lose."""
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()
        worker.pipe.close()


# -- in the processes ------------------------------------------------------------------------------------


def _work(pipe: Connection, obtain_one: Callable[..., Run]) -> None:
    """Run the specs that come until none comes any more."""
    ignore(signal.SIGINT)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            pipe.send(_try(partial(obtain_one, pipe.recv(), report=pipe.send)))
    except (EOFError, OSError):  # nobody listens any more
        os._exit(1)


def _try(run: Callable[[], Run]) -> Run | Exception:
    """Return a run, or what is wrong: bad input as it is, an accident with its traceback, which no pipe carries."""
    try:
        return run()
    except LasgError as error:
        return error
    except Exception:
        return RuntimeError(f"a run failed in its process:\n{traceback.format_exc()}")


def _end_with_parent() -> None:
    """End this process when its parent is gone, however it went: a run must not go on that nobody waits for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
