"""The examples of docs/extending.md run, and the page quotes them as they are."""

from __future__ import annotations

import copy
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lasg
from lasg.core.algorithms import Stages
from lasg.core.belief import Belief
from lasg.core.codecs import Codec
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import RULES
from lasg.runs.runner import deterministic_threads

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "extending"
NAMES = ("rule", "codec", "estimator", "pipes")
LONGEST = 105


def names_in(name: str) -> dict[str, Any]:
    """Return what an example defines."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.fixture
def printed(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Return the lines that an example prints."""
    command = [sys.executable, str(FOLDER / f"{request.param}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path)
    return done.stdout.splitlines()


def numbers(line: str) -> tuple[int, float]:
    """Return the uploads and the loss that a line ends with."""
    found = re.search(r"(\d+) uploads.* loss ([\d.]+)$", line)
    assert found is not None, line
    return int(found[1]), float(found[2])


@pytest.mark.parametrize("name", NAMES)
def test_the_page_quotes_the_file(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    assert f"```python\n{text}```\n" in (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("printed", ["rule"], indirect=True)
def test_the_rule_uploads_less_than_lag_to_the_same_loss(printed: list[str]) -> None:
    lag, quiet = map(numbers, printed)
    assert quiet[0] < lag[0] / 2
    assert quiet[1] < 1.05 * lag[1]


@pytest.mark.parametrize("printed", ["codec"], indirect=True)
def test_the_codecs_train_as_well_as_sgd(printed: list[str]) -> None:
    assert len(printed) == 3
    assert all(numbers(line)[1] < 0.21 for line in printed)


@pytest.mark.parametrize("printed", ["estimator"], indirect=True)
def test_the_estimator_saves_uploads(printed: list[str]) -> None:
    without, with_it = map(numbers, printed)
    assert with_it[0] < without[0]
    assert with_it[1] < 1.05 * without[1]


@pytest.mark.parametrize("printed", ["pipes"], indirect=True)
def test_processes_joined_by_pipes_find_what_one_process_finds(printed: list[str]) -> None:
    assert len(printed) == len(names_in("pipes")["ALGORITHMS"]) == 4
    assert all(line.endswith("3 processes equal one") for line in printed), printed


STAGES: dict[str, dict[str, Any]] = {
    "always+dense+H2+inner": {"optimizer": "Adam", "eta": 0.01, "inner_memory": "averaged"},
}


@pytest.mark.parametrize("name", STAGES)
def test_other_stages_find_over_pipes_what_they_find_in_one_process(name: str) -> None:
    spec = lasg.task("digits").spec(name, dtype="float64", **STAGES[name])
    ends: list[dict[int, Any]] = [{}, {}]
    ends[0][1], ends[1][0] = Pipe()

    def train(transport: Any) -> tuple[Any, ...]:
        # Of its own, as processes have it: a problem keeps what it drew last, and threads would share that.
        training = lasg.training(spec, copy.deepcopy(lasg.problem(spec)), transport)
        uploaded = [training.step().uploaded.tolist() for _ in range(20)]
        return uploaded, training.ledger.row(), training.theta.tobytes()

    with deterministic_threads(spec), ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda number: train(names_in("pipes")["Pipes"](number, ends[number])), range(2)))
        assert found == [train(None)] * 2


def test_a_message_of_the_largest_entries_has_the_length_that_the_codec_says() -> None:
    codec: Codec = names_in("codec")["Largest"](3)
    rows = np.array([[0.5, -4.0, 1.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    messages = codec.encode(rows, lambda: rows)
    assert [len(message) for message in messages] == [codec.length(5)] * 2
    assert codec.decode(messages, rows[0])[0].tolist() == [0.0, -4.0, 1.0, 0.0, 2.0]


@pytest.mark.parametrize("belief", ["replace", "difference", "residual"])
@pytest.mark.parametrize("part", ["codec", "rule", "estimator"])
def test_what_the_examples_keep_survives_a_checkpoint(part: str, belief: Belief) -> None:
    """A run that goes on from a state in the middle ends with the same bits."""
    own: dict[str, Any] = {"rule": RULES["wk2"]}
    if part == "codec":
        own["codec"] = names_in("codec")["InTurn"](4)
    elif part == "rule":
        own["rule"] = names_in("rule")["RULE"]
    else:
        own["estimator"] = names_in("estimator")["RunningMean"]()
    spec = lasg.task("breast-cancer").spec("lasg-wk2", D=20)
    problem = lasg.problem(spec)

    def training() -> lasg.Training:
        stages = Stages(belief=belief, **own)
        return lasg.Training(problem, ClosedFormSGD(problem.start(), Constant(0.5)), stages, spec.laziness)

    whole, second = training(), training()
    for _ in range(30):
        whole.step()
    second.restore(whole.state())
    for _ in range(30):
        assert whole.step().uploaded.tolist() == second.step().uploaded.tolist()
    assert whole.theta.tobytes() == second.theta.tobytes()
