"""`lasg.loops.tracking.track`: the figures of a loop of one's own."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

import lasg
from lasg.errors import LasgError
from lasg.loops.tracking import track
from tests.transports.ranks import on_ranks

BATCHES = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(i)), torch.arange(4) % 3) for i in range(7)]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_lazy_loop_has_a_row_per_round_with_the_loss_that_was_given(tmp_path: Path) -> None:
    model, optimizer = parts()
    losses = []
    with lasg.lazy(model, optimizer, every=3) as loop:
        log = track(loop, f"csv={tmp_path / 'log.csv'}")
        for x, y in BATCHES:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            losses.append(float(loss.detach()))
            log(loss=loss)
            optimizer.step()
    found = rows(tmp_path / "log.csv")
    assert [row["step"] for row in found] == ["1", "2", "3"], "the last, shorter round too"
    assert [float(row["loss"]) for row in found] == [losses[2], losses[5], losses[6]]
    assert [float(row["uploads"]) for row in found] == [1, 2, 3]
    assert all(float(row["seconds_per_round"]) > 0 for row in found)
    assert loop.listeners == []


def test_a_lazy_optimizer_logs_its_loss_by_itself_and_both_sides_of_the_rule(tmp_path: Path) -> None:
    model, optimizer = parts()
    opt = lasg.LazyOptimizer(optimizer, rule="wk2", codec="dense", c=100.0)
    log = track(opt, f"csv={tmp_path / 'log.csv'}")
    last = [opt.step(lambda x=x, y=y: nn.functional.cross_entropy(model(x), y)) for x, y in BATCHES]  # type: ignore[misc]
    log.close()
    opt.step(lambda: nn.functional.cross_entropy(model(BATCHES[0][0]), BATCHES[0][1]))
    found = rows(tmp_path / "log.csv")
    assert [float(row["loss"]) for row in found] == [float(loss) for loss in last]  # type: ignore[arg-type]
    assert found[0]["innovation"] == "", "everybody had to upload"
    heard = [row for row in found if row["innovation"]]
    assert heard
    for row in heard:
        is_silent = float(row["innovation"]) <= float(row["threshold"])
        assert float(row["silent"]) == is_silent == 1 - float(row["uploaded/worker_0"])
    assert any(float(row["silent"]) for row in heard), "c = 100 is very lazy"


def of_a_rank(folder: Path) -> int:
    model, optimizer = parts()
    rank = torch.distributed.get_rank()
    with lasg.lazy(model, optimizer, every=2) as loop:
        track(loop, f"csv={folder / f'{rank}.csv'}", settings={"every": 2})
        for x, y in BATCHES:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return int(loop.sent.sum())


def test_rank_0_alone_writes_and_says_the_bytes_that_it_sent(tmp_path: Path) -> None:
    sent = on_ranks(2, of_a_rank, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["0.csv"]
    found = rows(tmp_path / "0.csv")
    assert len(found) == 4
    assert 0 < float(found[0]["bytes_sent_by_rank_0"]) < float(found[-1]["bytes_sent_by_rank_0"]) <= sent[0]
    assert [row["silent"] for row in found] == ["0.0"] * 4


def test_what_is_no_loop_and_what_is_no_tracker_is_refused_in_one_line(tmp_path: Path) -> None:
    model, optimizer = parts()
    opt = lasg.LazyOptimizer(optimizer)
    for loop, to, line in (
        (model, "csv=log.csv", "got Linear"),
        (opt, "wandbb", "unknown tracker 'wandbb'. Did you mean wandb?"),
        (opt, "csv", "the tracker csv needs a place: csv=FILE"),
        (opt, f"csv={tmp_path}", f"cannot write {tmp_path}"),
    ):
        with pytest.raises(LasgError) as error:
            track(loop, to)  # type: ignore[arg-type]
        assert line in str(error.value)
        assert "\n" not in str(error.value)
    assert opt.listeners == []
