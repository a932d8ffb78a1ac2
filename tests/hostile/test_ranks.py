"""What a damaged part, or another number of ranks, does to a run on ranks."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="the data is scikit-learn's")

from lasg.core.training import Training
from lasg.errors import LasgError
from lasg.runs import on_ranks as runs
from lasg.transports.links import Links
from tests.hostile.victims import _checkpoint_every_round, _contents
from tests.runs.samples import same_bytes, small
from tests.transports.ranks import on_ranks

SPEC = small("laqsg-pse", iterations=12, evaluate=4)


def stopped(out: str) -> str:
    """On a rank: run until round 8, and stop as Ctrl-C does."""
    links, step = Links(), Training.step

    def stepping(self: Training) -> Any:
        if self.server.k == 7:
            self.control = 2
        return step(self)

    Training.step = stepping  # type: ignore[method-assign]
    try:
        with _checkpoint_every_round(), contextlib.suppress(KeyboardInterrupt):
            runs.obtain(SPEC, Path(out), links, report=lambda _: None)
    finally:
        Training.step = step  # type: ignore[method-assign]
    return ""


def resumed(out: str) -> tuple[str, list[str], Any]:
    """On a rank: go on, or say why not."""
    heard: list[str] = []
    try:
        run = runs.obtain(SPEC, Path(out), Links(), report=lambda status: heard.extend(status.remarks))
    except LasgError as error:
        return str(error), heard, None
    return "", heard, None if run is None else _contents(run)


def astray(out: str) -> tuple[list[str], Any]:
    """On a rank: the model of rank 1 changes after the last round, in which no step compares it any more."""
    links, step = Links(), Training.step

    def stepping(self: Training) -> Any:
        done = step(self)
        if self.server.k == 12 and links.rank == 1:
            self.server.theta[3] += 1e-3
        return done

    Training.step = stepping  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            run = runs.obtain(SPEC, Path(out), links)
    finally:
        Training.step = step  # type: ignore[method-assign]
    return [str(one.message) for one in said], None if run is None else _contents(run)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Give a run on two ranks that was stopped, and what it comes to."""
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(2, stopped, str(folder / "left"))
    shutil.copytree(folder / "left", folder / "whole")
    (_, said, whole), _ = on_ranks(2, resumed, str(folder / "whole"))
    assert not said
    return folder / "left", whole


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("what", ["checkpoint-8-*-rank-0-of-2.*", "checkpoint-8-*-rank-1-of-2.*", "checkpoint.json"])
def test_a_damaged_part_or_manifest_falls_back_on_all_ranks_and_is_named(
    what: str, left: tuple[Path, Any], tmp_path: Path
) -> None:
    shutil.copytree(left[0], tmp_path / "runs")
    (path,) = (tmp_path / "runs").glob(f"*/{what}")
    damage(path)
    (refused, said, contents), (_, quiet, _) = on_ranks(2, resumed, str(tmp_path / "runs"))
    assert not refused
    assert len(said) == 1
    assert path.name in said[0]
    assert "going on from the checkpoint before it, of round 7" in said[0]
    assert not quiet
    assert same_bytes(contents, left[1])


def test_another_number_of_ranks_is_refused_with_a_line_and_fresh_begins_anew(
    left: tuple[Path, Any], tmp_path: Path
) -> None:
    shutil.copytree(left[0], tmp_path / "runs")
    with pytest.raises(LasgError, match="was begun on 2 ranks, and here are 1: start as many, or run it again"):
        runs.obtain(SPEC, tmp_path / "runs", Links())
    run = runs.obtain(SPEC, tmp_path / "runs", Links(), fresh=True)
    assert run is not None
    assert run.status == "done"


def test_models_are_compared_at_the_end(left: tuple[Path, Any], tmp_path: Path) -> None:
    (said, contents), (_, _) = on_ranks(2, astray, str(tmp_path / "runs"))
    assert said == ["the model of rank 1 was not rank 0's in round 12: all go on with rank 0's"]
    assert same_bytes(contents, left[1])
