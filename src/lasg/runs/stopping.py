"""Ctrl-C and SIGTERM, answered at a moment that is safe."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on Ctrl-C or SIGTERM, where Python would raise KeyboardInterrupt between any two instructions.

    A second Ctrl-C is answered as before. Outside the main thread, which signals do not interrupt, nothing changes.
    """
    before: dict[signal.Signals, Any] = {}

    def answer(*_: Any) -> None:
        signal.signal(signal.SIGINT, before[signal.SIGINT])
        stop()

    try:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                # None stands for a handler that Python did not install and cannot put back.
                before[number] = signal.getsignal(number) or signal.SIG_DFL
                signal.signal(number, answer)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def block(number: signal.Signals) -> Iterator[None]:
    """Block a signal in this thread, so that processes started meanwhile begin with it blocked."""
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore(number: signal.Signals) -> None:
    """Ignore a signal for good, also one that came while it was blocked."""
    signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
