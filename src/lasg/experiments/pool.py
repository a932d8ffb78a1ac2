"""Many runs at once, one process a core. A run's numbers do not depend on how many run beside it."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from lasg.errors import LasgError
from lasg.experiments.runner import run_or_read
from lasg.experiments.spec import Spec
from lasg.experiments.status import Report, Status
from lasg.experiments.store import Run

LAST_WORD_SECONDS = 5.0
"""How long the last report of a finished run is waited for."""

_reports: Any = None


def cores() -> int:
    """Return how many processes this machine runs at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
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
    if jobs <= 1 or len(specs) == 1:
        return [run_or_read(spec, out, fresh=fresh, data_dir=data_dir, report=report) for spec in specs]
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    pool = ProcessPoolExecutor(min(jobs, len(specs)), context, initializer=_start, initargs=(reports,))
    try:
        futures = [pool.submit(_one, spec, out, fresh, data_dir) for spec in specs]
        _follow(futures, reports, report)
        return [future.result() for future in futures]
    except BrokenProcessPool:
        message = "a process was killed, perhaps for want of memory: take fewer --jobs; run again to go on"
        raise LasgError(message) from None
    except BaseException:
        # Ctrl-C or one failed run: let the others go, their checkpoints stay.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        reports.close()


def _start(reports: Any) -> None:
    global _reports  # noqa: PLW0603
    _reports = reports
    # Ctrl-C reaches every process of the terminal; the parent alone answers it, in one line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A process that ends must not wait for a parent that no longer listens.
    reports.cancel_join_thread()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is gone, however it went: a run must not go on that nobody waits for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _one(spec: Spec, out: Path | str, fresh: bool, data_dir: Path | str | None) -> Run:
    return run_or_read(spec, out, fresh=fresh, data_dir=data_dir, report=_reports.put)


def _follow(futures: Sequence[Future[Run]], reports: Any, report: Report | None) -> None:
    """Pass on what the processes report until all are done or one failed."""
    pending = set(futures)
    ended = 0
    while pending or ended < len(futures):
        done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED) if pending else (set(), pending)
        for future in done:
            future.result()
        # The last word of a run may arrive a moment after its result: it is waited for.
        timeout = 0.0 if pending else LAST_WORD_SECONDS
        try:
            while ended < len(futures):
                status: Status = reports.get(timeout=timeout) if timeout else reports.get_nowait()
                ended += status.share >= 1
                if report is not None:
                    report(status)
        except queue.Empty:
            if not pending:
                return
