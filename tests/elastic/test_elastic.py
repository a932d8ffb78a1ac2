"""Ranks that come and go: torchft's lighthouse, real processes, real signals."""

import csv
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

import lasg
from lasg.cli.main import main
from lasg.errors import LasgError
from lasg.loops.tracking import track
from lasg.runs.elastic_replay import replay
from tests.elastic.conftest import Crew
from tests.elastic.rank import parts

pytestmark = pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated")  # torchft logs with it


def members(count: int) -> Any:
    return lambda said: len(said[1]) == count


def speaks(name: str) -> Any:
    return lambda said: name in said[2]


def test_survivors_go_on_and_who_was_killed_comes_back(crew: Crew, tmp_path: Path) -> None:
    record = tmp_path / "record"
    crew.start("a", record=str(record))
    crew.start("b")
    crew.start("c")
    crew.until("a", lambda said: len(said[2]) == 3)
    crew.kill("c")
    before = crew.until("a", members(2))[-1][0]
    assert crew.until("a", lambda said: said[0] == before + 3)[-1][1] == ("a", "b")
    crew.start("c")
    found = crew.until("a", speaks("c"))[-1]
    k = found[0]
    for name in "bc":
        assert crew.until(name, lambda said: said[0] == k)[-1] == found, "the same members, speakers and bits"
    assert "c" in found[1]
    crew.kill("a")  # a record may end in the middle
    again = replay(record)
    assert again.rounds >= k - 2
    assert again.joins >= 1
    assert again.leaves >= 1


def test_a_hung_rank_is_left_out_and_gets_the_model_when_it_goes_on(crew: Crew) -> None:
    for name in "ab":
        crew.start(name)
    crew.until("a", lambda said: len(said[2]) == 2)
    crew.signal("b", signal.SIGSTOP)
    crew.until("a", members(1))
    time.sleep(1.0)
    crew.signal("b", signal.SIGCONT)
    found = crew.until("a", speaks("b"))[-1]
    assert crew.until("b", lambda said: said[0] == found[0])[-1] == found


def test_a_slow_rank_is_silent_when_late_and_counts_later(crew: Crew) -> None:
    for name in "abc":
        crew.start(name, pause=0.3 if name == "c" else 0.02)
    crew.until("a", lambda said: len(said[1]) == 3)
    rounds = [crew.hear("a") for _ in range(30)]
    assert sum(said[1] == ("a", "b", "c") for said in rounds) >= 25, "late is not gone"
    spoke = sum("c" in said[2] for said in rounds)
    assert 1 <= spoke <= 15


def test_training_waits_for_the_minimum_of_members(crew: Crew) -> None:
    crew.start("a", minimum=2)
    assert not crew.pipes["a"].poll(4.0)
    crew.start("b", minimum=2)
    assert crew.hear("a")[1] == ("a", "b")


def test_all_ranks_end_with_one_model(crew: Crew) -> None:
    for name in "ab":
        crew.start(name, rounds=12)
    ends = [crew.until(name, lambda said: said[0] == "end")[-1] for name in "ab"]
    assert ends[0][2] == ends[1][2]


def test_other_settings_and_another_model_and_a_taken_name_are_refused(crew: Crew) -> None:
    crew.start("a")
    crew.until("a", speaks("a"))
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "b": ({"every": 5}, "every is 4, and here it is 5"),
        "c": ({"outputs": 4}, "model"),
        "d": ({"algorithm": "diloco"}, "algorithm is 'lasg-local', and here it is 'diloco'"),
        "e": ({"called": "a"}, "there is a member a already"),
    }
    for name, (options, _) in wrong.items():
        crew.start(name, **options)
    for name, (_, line) in wrong.items():
        kind, text = crew.hear(name)
        assert kind == "error"
        assert line in text
        assert "\n" not in text
    assert [crew.hear("a")[1] for _ in range(2)][-1] == ("a",), "the run is not disturbed"


def test_two_that_start_at_once_with_other_settings_do_not_train_together(crew: Crew) -> None:
    crew.start("a", every=4)
    crew.start("b", every=5)
    said = {name: crew.hear(name) for name in "ab"}
    errors = [name for name, first in said.items() if first[0] == "error"]
    assert errors or all(len(first[1]) == 1 for first in said.values())


def test_no_lighthouse_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(LasgError, match=f"no lighthouse answers at http://127.0.0.1:{port}: .*lasg elastic lighthouse"):
        lasg.elastic(*parts(), lighthouse=f"127.0.0.1:{port}").join()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"lighthouse": "10.0.0.1"}, "lighthouse must be HOST:PORT"),
        ({"lighthouse": "a:1", "name": "a b"}, "name must be letters"),
        ({"lighthouse": "a:1", "minimum": 0}, "minimum must be"),
        ({"lighthouse": "a:1", "timeout": 0}, "timeout must be above 0"),
        ({"lighthouse": "a:1", "weight": 0.0}, "weight must be"),
        ({"lighthouse": "a:1", "algorithm": "lasg-wk2"}, "decides by gradients"),
        ({"lighthouse": "a:1", "outer_options": {"lr": 1}}, "outer_options are those of"),
    ],
)
def test_wrong_settings_are_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(LasgError, match=line):
        lasg.elastic(*parts(), **options)


def test_when_all_have_died_the_run_goes_on_from_a_state_dict(at: str, tmp_path: Path) -> None:
    model, optimizer = parts()
    with lasg.elastic(model, optimizer, lighthouse=at, name="a", every=1) as loop:
        log = track(loop, f"csv={tmp_path / 'log.csv'}")
        for _ in range(3):
            loss = model(lasg_input()).square().mean()
            loss.backward()
            log(loss=loss)
            optimizer.step()
        saved, rounds = loop.state_dict(), loop.rounds
    log.close()
    assert loop.listeners == []
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= rounds - 1
    assert all(row["members"] == "1.0" and float(row["seconds_per_round"]) > 0 for row in rows)
    assert [float(row["silent"]) for row in rows] == [1 - float(row["uploaded/a"]) for row in rows]
    assert float(rows[-1]["uploads"]) == sum(float(row["uploaded/a"]) for row in rows) > 0
    assert float(rows[-1]["bytes_up"]) > 0
    assert float(rows[-1]["loss"]) == float(loss.detach())
    again, other = parts()
    with lasg.elastic(again, other, lighthouse=at, name="b", every=1, timeout=3.0) as loop:
        pass
    with pytest.raises(LasgError, match="not of an elastic loop like this one: every differ"):
        lasg.elastic(again, other, lighthouse=at, every=2).load_state_dict(saved)
    third = lasg.elastic(again, other, lighthouse=at, name="c", every=1)
    third.load_state_dict(saved)
    third.join()
    assert third.rounds >= rounds
    third.leave()


def lasg_input() -> Any:
    import torch

    return torch.ones(2, 8)


def test_a_folder_without_a_record_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="has no record of an elastic run"):
        replay(tmp_path)


def test_the_demo_kills_a_rank_and_ends_with_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "record"
    assert main(["elastic", "demo", "--out", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "round 5: c is killed (SIGKILL)" in shown
    assert "round 18: a is started again" in shown
    assert "After every round all members had one model: yes" in shown
    assert main(["replay", str(folder)]) == 0
    assert "The model is the same, bit for bit, after every round" in capsys.readouterr().out
    with pytest.raises(LasgError, match="has the record of a run already"):
        lasg.elastic(*parts(), lighthouse="a:1", record=str(folder))


def test_a_record_that_was_changed_is_refused(tmp_path: Path, crew: Crew) -> None:
    record = tmp_path / "record"
    crew.start("a", rounds=6, record=str(record))
    crew.until("a", lambda said: said[0] == "end")
    rounds = record / "rounds.bin"
    damaged = bytearray(rounds.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    rounds.write_bytes(damaged)
    with pytest.raises(LasgError, match="is damaged after byte"):
        replay(record)


def test_a_lighthouse_on_a_taken_port_is_one_line(at: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["elastic", "lighthouse", "--port", at.rpartition(":")[2]]) == 2
    assert "cannot listen on port" in capsys.readouterr().err
