"""The command as a user meets it: a process that can be stopped, piped and run many at once."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from lasg.runs import store

from .conftest import Done, Lasg, complaints, environment, said, spawn

LONG = [
    "compare",
    "breast-cancer",
    "-a",
    "sgd,lasg-wk2",
    "--seeds",
    "2",
    "--until",
    "iterations=20000",
    "--out",
    "runs",
]


CTRL_C_WHILE_THE_PARENT_SLEEPS = (
    'parent = str(os.getppid()); sys.waker = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {parent}"], '
    "start_new_session=True); os.kill(int(parent), signal.SIGSTOP); os.killpg(0, signal.SIGINT)"
)


def start(*arguments: str, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lasg", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | more,
        start_new_session=True,
        # Where the tests themselves run in the background, SIGINT is ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def wait_for_a_run(process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        if list(Path("runs").glob("*/meta.json")) or process.poll() is not None:
            return
        time.sleep(0.05)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_a_comparison_with_one_line_and_runs_that_can_be_continued(lasg: Lasg, jobs: str) -> None:
    process = start(*LONG, "-j", jobs)
    try:
        wait_for_a_run(process)
        time.sleep(0.3)
        assert process.poll() is None, process.communicate()
        # A terminal sends it to every process of the group.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130
    assert not out
    stopped = [folder for folder in Path("runs").iterdir() if store.read(folder).status == "running"]
    assert stopped
    line = said(Done(process.returncode, out, err))
    assert all(f"lasg resume {folder}" in line for folder in stopped)
    done = lasg("resume", stopped[0], "--json")
    assert done.code == 0
    assert json.loads(done.out)["status"] == "done"


def in_every_child(code: str) -> str:
    """Return a PYTHONPATH on which lies a module that every spawned process imports first, and that runs this code."""
    Path("first").mkdir()
    lines = ["import os, signal, subprocess, sys", 'if "--multiprocessing-fork" in sys.orig_argv:', f"    {code}"]
    Path("first/sitecustomize.py").write_text("\n".join(lines))
    return os.pathsep.join([str(Path("first").absolute()), os.environ.get("PYTHONPATH", "")])


def test_ctrl_c_while_processes_start_ends_with_one_line_and_leaves_none() -> None:
    # Those that are starting send it themselves, to the whole group, while the parent gets no time on a busy machine.
    process = start(*LONG, "-j", "2", PYTHONPATH=in_every_child(CTRL_C_WHILE_THE_PARENT_SLEEPS))
    out, err = process.communicate(timeout=60)  # until nobody has its output open any more
    assert process.returncode == 130
    assert not out
    assert said(Done(process.returncode, out, err)) == "lasg: stopped before a run began"


@pytest.mark.parametrize("when", ["starting", "running"])
def test_processes_end_when_their_parent_is_killed(when: str) -> None:
    code = "os.kill(os.getppid(), signal.SIGKILL)" if when == "starting" else "pass"
    endless = [word.replace("20000", "20000000") for word in LONG]
    process = start(*endless, "-j", "2", PYTHONPATH=in_every_child(code))
    if when == "running":
        wait_for_a_run(process)
        process.kill()
    process.communicate(timeout=60)  # until nobody has its output open any more
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("words", [[], ["list"], ["data"], ["flower"], ["theory"]])
def test_a_command_that_wants_another_word_shows_its_help(words: list[str]) -> None:
    done = spawn(*words)
    assert done.code == 2
    assert f"Usage: python -m lasg {' '.join(words)}".strip() in done.out
    assert "Commands" in done.out
    assert not done.err


def test_the_entry_point_exits_with_the_code_and_prints_results_alone_on_stdout() -> None:
    done = spawn("run", "breast-cancer", "-a", "lasg-wk2", "--until", "iterations=5", "--out", "runs", "--json")
    assert done.code == 0
    assert json.loads(done.out)["rounds"] == 5
    assert not complaints(done)
    wrong = spawn("run", "nonsense", "-a", "sgd")
    assert wrong.code == 2
    assert "unknown task" in said(wrong)


def test_a_reader_that_goes_away_is_no_accident() -> None:
    process = start("list", "tasks", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) in {0, 1}
    assert not err, err


def test_a_comparison_in_processes_is_the_comparison_in_one(lasg: Lasg) -> None:
    call = ["compare", "breast-cancer", "-a", "sgd,laqsg-wk2", "--seeds", "2", "--until", "iterations=30", "--json"]
    many = spawn(*call, "-j", 2, "--out", "many")
    one = lasg(*call, "-j", 1, "--out", "one")
    assert many.code == one.code == 0
    assert json.loads(many.out) == json.loads(one.out)
    assert not complaints(many)
