"""Faults that a process does to itself, as its environment says; run as a script, lasg's command line under them."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HUGE, CLOCK, DISK, CUT = "SOAK_HUGE", "SOAK_CLOCK", "SOAK_DISK", "SOAK_CUT"
"""WORKER:EVERY, gradients of 1e30; SECONDS, by which clocks jump; BYTES, which no file may exceed; RANK:ROUND."""


def apply() -> None:
    """Do what the environment says."""
    from lasg.runs import runner

    runner.CHECKPOINT_SECONDS, runner.CHECKPOINT_SHARE = 0.05, 1.0
    if HUGE in os.environ:
        huge_gradients(*map(int, os.environ[HUGE].split(":")))
    if CLOCK in os.environ:
        jumping_clocks(float(os.environ[CLOCK]))
    if DISK in os.environ:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ[DISK]), resource.RLIM_INFINITY))
    if CUT in os.environ and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        rank, k = map(int, os.environ[CUT].split(":"))
        if os.environ.get("RANK") == str(rank):
            cut_in_round(k)


def huge_gradients(worker: int, every: int) -> None:
    """Let a worker's gradients be huge in some rounds."""
    from lasg.core.arrays import copy
    from lasg.problems.module import ModuleProblem
    from lasg.problems.regression import Regression

    for kind in (Regression, ModuleProblem):

        def forged(self: Any, iteration: int, points: Any, rows: Any, gradients: Any = kind.gradients) -> list[Any]:
            found: list[Any] = gradients(self, iteration, points, rows)
            who = np.arange(self.workers) if rows is None else np.asarray(rows)
            at = np.flatnonzero(self.batches.ids[who] == worker)
            if iteration % every == every - 1 and len(at):
                found = [copy(grad) for grad in found]
                for grad in found:
                    grad[at] = 1e30
            return found

        kind.gradients = forged  # type: ignore[method-assign]


def jumping_clocks(seconds: float) -> None:
    """Let the clocks jump, again and again; one that cannot go back does not."""
    for name in ("time", "monotonic", "perf_counter"):
        clock, calls = getattr(time, name), [0]

        def jumped(clock: Any = clock, calls: list[int] = calls, name: str = name) -> float:
            calls[0] += 1
            jumps = calls[0] // 200
            return float(clock() + jumps * (seconds if name == "time" else abs(seconds)))

        setattr(time, name, jumped)


def cut_in_round(k: int) -> None:
    """Cut all connections of this process to others, in a round."""
    from lasg.core.training import Training

    step = Training.step

    def stepping(self: Training) -> Any:
        if self.server.k == k:
            for path in Path("/proc/self/fd").iterdir():
                cut(int(path.name))
        return step(self)

    Training.step = stepping  # type: ignore[method-assign]


def cut(descriptor: int) -> None:
    """Shut a connection down, if it is one."""
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return
    try:
        if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
            copy.getpeername()
            copy.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    finally:
        copy.close()


if __name__ == "__main__":
    from lasg.cli.main import main

    apply()
    sys.exit(main())
