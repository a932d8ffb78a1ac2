"""Runs in processes: whoever is stopped or killed, nobody is left and nobody waits."""

import multiprocessing
import signal
from pathlib import Path

import pytest

from lasg.errors import LasgError
from lasg.runs import pool, store
from lasg.runs.status import Status
from tests.runs.samples import small

ENDLESS = [small("sgd", iterations=10_000_000, evaluate=1000, seed=seed) for seed in range(3)]


def test_ctrl_c_waits_for_a_safe_moment_and_leaves_no_process(tmp_path: Path) -> None:
    finished: list[str] = []

    def report(status: Status) -> None:
        if not finished:
            # A KeyboardInterrupt here, or in the middle of a lock's acquisition, is one that nobody can clean up after.
            signal.raise_signal(signal.SIGINT)
        finished.append(status.spec.label)

    with pytest.raises(KeyboardInterrupt):
        pool.obtain_all(ENDLESS, tmp_path, jobs=2, report=report)
    assert finished
    assert not multiprocessing.active_children()
    assert store.read(tmp_path / finished[0]).status == "running"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    finished = False

    def report(_: Status) -> None:
        nonlocal finished
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        finished = True

    with pytest.raises(KeyboardInterrupt):
        pool.obtain_all(ENDLESS, tmp_path, jobs=2, report=report)
    assert not finished
    assert not multiprocessing.active_children()


def test_a_killed_process_ends_the_others_with_a_line_that_says_so(tmp_path: Path) -> None:
    def report(_: Status) -> None:
        for process in multiprocessing.active_children()[:1]:
            process.kill()

    with pytest.raises(LasgError, match=r"a process was killed \(signal 9\).*run again to go on"):
        pool.obtain_all(ENDLESS, tmp_path, jobs=2, report=report)
    assert not multiprocessing.active_children()
