"""A run under way, seen from another process: its checkpoint on every engine, `lasg watch` and `lasg report --live`."""

from __future__ import annotations

import io
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import lasg
from lasg.cli import watch
from lasg.errors import LasgError
from lasg.report import page, serve
from lasg.runs import on_ranks as ranks
from lasg.runs import progress, store
from lasg.runs.runner import run
from lasg.transports.links import join
from tests.runs.samples import Stopped, small, stop_after
from tests.transports.ranks import on_ranks


def text_of(found: progress.Progress) -> str:
    console = Console(width=120, file=io.StringIO())
    console.print(watch.frame(found))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def stopped(folder: Path, rounds: int = 9) -> Path:
    with pytest.raises(Stopped):
        run(small("lasg-wk2", evaluate=2), folder, report=stop_after(rounds))
    return folder


@pytest.mark.usefixtures("eager")
def test_what_is_read_of_a_run_under_way_is_the_beginning_of_its_trace(tmp_path: Path) -> None:
    seen = progress.read(stopped(tmp_path / "run"))
    assert not seen.has_ended
    assert not seen.is_live
    whole = lasg.train(small("lasg-wk2", evaluate=2), folder=tmp_path / "whole")
    n, rounds = len(seen.run.trace["loss"]), len(seen.run.trace["threshold"])
    assert 1 < n < len(whole.trace["loss"])
    for name in ("loss", "uploads", "bits_up"):
        np.testing.assert_array_equal(seen.run.trace[name], whole.trace[name][:n])
    np.testing.assert_array_equal(seen.speaks(rounds), whole.uploads[:rounds])


@pytest.mark.usefixtures("eager")
def test_watch_shows_loss_savings_and_a_row_per_worker(tmp_path: Path) -> None:
    seen = progress.read(stopped(tmp_path / "run"))
    text, trace = text_of(seen), seen.run.trace
    assert f"{trace['loss'][-1]:.4g}" in text
    assert "stopped, or not on this machine (simulation), as of" in text
    rows = [line for line in text.splitlines() if "●" in line]
    assert len(rows) == seen.run.spec.workers
    assert sum(line.count("●") for line in rows) == seen.speaks(60).sum()
    every = trace["rounds"][-1] * seen.run.spec.workers
    assert seen.uploads_saved == 1 - trace["uploads"][-1] / every
    assert 0 < seen.bits_saved < 1


def test_bits_saved_are_those_of_dense_uploads_by_everybody(tmp_path: Path) -> None:
    for name, saved in (("sgd", 0.0), ("qsgd", 0.8)):
        lasg.train(small(name, iterations=20), folder=tmp_path / name)
        found = progress.read(tmp_path / name)
        assert found.bits_saved == pytest.approx(saved, abs=0.1 if saved else 1e-12)
        assert found.uploads_saved == 0


def test_a_run_that_has_ended_or_only_begun_says_so(tmp_path: Path) -> None:
    lasg.train(small("sgd", iterations=5), folder=tmp_path / "done")
    assert "seed 0: done" in text_of(progress.read(tmp_path / "done"))
    spec = small("sgd")
    store.begin(tmp_path / "begun", spec, "")
    found = progress.read(tmp_path / "begun")
    assert not found.has_begun
    assert "no checkpoint yet" in text_of(found)
    with pytest.raises(LasgError, match="is not a stored run"):
        progress.read(tmp_path / "nothing")
    (tmp_path / "begun" / store.CHECKPOINT).write_bytes(b"no safetensors")
    with pytest.raises(LasgError, match="cannot read"):
        progress.read(tmp_path / "begun")


def test_numbers_become_bars_of_their_height() -> None:
    assert watch.curve([1.0, 0.1, 0.01]) == "█▅▁" or watch.curve([1.0, 0.1, 0.01]) == "█▄▁"
    assert watch.curve([2.0, 2.0]) == "▁▁"
    assert watch.curve([float("nan")]) == "not measured"
    assert len(watch.curve([float(i) for i in range(500)])) == 40


def watched_on_a_rank(folder: Path) -> None:
    from lasg.runs import runner

    runner.CHECKPOINT_SECONDS, runner.REPORT_SECONDS = -1.0, 0.0
    seen: list[int] = []

    def look(status: object) -> None:
        if len(seen) < 3 and list(folder.glob("*/checkpoint-*-rank-0-of-*")):
            found = progress.read(next(iter(folder.glob("*/meta.json"))).parent)
            assert found.is_live
            assert "running (distributed)" in text_of(found)
            seen.append(len(found.run.trace["threshold"]))

    links = join(30)
    ranks.obtain(small("lasg-wk2", iterations=30, evaluate=1), folder, links, report=look if links.rank == 0 else None)
    assert links.rank or (len(seen) == 3 and seen[-1] > 0)


def test_a_run_on_ranks_is_seen_while_it_runs(tmp_path: Path) -> None:
    on_ranks(2, watched_on_a_rank, tmp_path)


def get(url: str, **headers: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode(), answer.headers.get("Refresh", "")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, "", ""


@pytest.mark.usefixtures("eager")
def test_the_live_page_follows_a_run_and_answers_this_machine_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def make() -> str:
        return page.build([progress.read(folder).run], under_way=True)

    with serve.LivePage(make, 0, 5) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            assert "is not a stored run" in get(server.url)[1]
            stopped(folder, 5)
            early = get(server.url)
            stopped_again = progress.read(folder)
            assert early[0] == 200
            assert early[2] == "5"
            lasg.train(small("lasg-wk2", evaluate=2), folder=folder)
            late = get(server.url)
            assert stopped_again.run.trace["rounds"][-1] < progress.read(folder).run.trace["rounds"][-1]
            assert early[1] != late[1]
            assert late[1].count("lasg-wk2") >= 1
            assert get(f"{server.url}etc/passwd")[0] == 404
            assert get(server.url, Host="evil.example")[0] == 403
            assert server.server_address[0] == "127.0.0.1"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("eager")
def test_a_written_report_still_refuses_a_run_under_way(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="has not ended"):
        page.build([store.read(stopped(tmp_path / "run"))])
