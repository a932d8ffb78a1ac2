"""Processes that are hurt: forks of this one, which has loaded all, and how they ended."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from tests.hostile import hooks

LONGEST = 600.0
"""Seconds after which a process hangs: many, since a soak may have little of a busy machine."""
STEP = 0.005


def forked(act: Callable[[], int], log: Path, environment: Mapping[str, str]) -> int:
    """Do something in a child, with faults as the environment says and its words in a file; return the child."""
    log.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return child
    torch.set_num_threads(1)  # a fork has none of its parent's threads, and OpenMP would wait for them for ever
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1), os.dup2(handle, 2)
        faulthandler.register(signal.SIGUSR1, file=handle)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(environment)
        hooks.apply()
        code = act()
    except BaseException:  # what a user would see
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def patient(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds; time in which this process itself stood still does not count."""
    left, before = seconds, time.monotonic()
    while not done():
        if left < 0:
            return False
        time.sleep(STEP)
        now = time.monotonic()
        left -= min(now - before, 100 * STEP)
        before = now
    return True


def waited(child: int, seconds: float = LONGEST) -> int | None:
    """Return a child's exit code, below 0 for a signal; None: it hung, and was killed."""
    found: list[int] = []

    def ended() -> bool:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            found.append(os.waitstatus_to_exitcode(status))
        return bool(done)

    if patient(ended, seconds):
        return found[0]
    hurt(child, signal.SIGUSR1)  # it writes where it stands
    time.sleep(1)
    hurt(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def hurt(child: int, what: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, what)


def judged(status: int | None, log: Path) -> str | None:
    """Say what was wrong with a process's end, if anything was."""
    text = log.read_text(errors="replace") if log.exists() else ""
    if status is None:
        print(text, file=sys.stderr)
        return "HUNG"
    # torchrun has a traceback of its own for ranks that failed, and a line called so.
    found = text.replace("Traceback : ", "").replace("traceback : ", "")
    parts = found.split("Traceback (most recent call last):")[1:]
    if (
        all("ChildFailedError" in part or "SignalException" in part for part in parts)
        and "Traceback" not in (found.partition("Traceback (most recent call last):")[0])
    ):
        return None
    print(text, file=sys.stderr)
    return "TRACEBACK"


def damage(out: Path, chance: random.Random) -> None:
    """Flip bits of one file that runs below a folder go on from, or cut it short."""
    files = [path for path in out.rglob("checkpoint*") if path.is_file() and path.stat().st_size]
    if not files:
        return
    path = chance.choice(sorted(files))
    data = bytearray(path.read_bytes())
    if chance.random() < 0.3:
        data = data[: chance.randrange(len(data))]
    else:
        for _ in range(chance.choice([1, 1, 8])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
