"""What is seen of runs under way: how far, how fast, how long still; bars on a terminal, few lines in a log."""

import io
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from lasg.cli import live
from lasg.cli.live import LOG_SECONDS, Log, Meter, describe, following
from lasg.core.ledger import Ledger
from lasg.runs.runner import run
from lasg.runs.status import Status
from tests.runs.samples import made_up, small

WORKERS = small("sgd").workers


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let everything that `live` times go by a clock of our own."""
    made = Clock()
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=made))
    monkeypatch.setattr(live, "Meter", lambda total: Meter(total, made))
    monkeypatch.setattr(live, "Log", lambda: Log(made))
    return made


def status(
    share: float,
    seconds: float = 1.0,
    *,
    rounds: int = 100,
    seed: int = 0,
    saved: float = 0.0,
    began: float = 0.0,
    stored: bool = False,
) -> Status:
    """Return a report of a run that went so many rounds in so many seconds."""
    ledger = Ledger(rounds=rounds, iterations=rounds, uploads=round(rounds * WORKERS * (1 - saved)))
    return Status(small("lasg-wk2", seed=seed), share, ledger, 0.12345, seconds, (), began, stored)


# -- the meter -----------------------------------------------------------------------------------------------


def test_a_run_goes_as_many_rounds_a_second_as_it_went_so_far() -> None:
    meter = Meter(1, Clock())
    assert meter.rounds_per_second == 0
    meter(status(0.1, 4.0, rounds=200))
    assert meter.rounds_per_second == 50
    meter(status(0.2, 8.0, rounds=600))
    assert meter.rounds_per_second == 75


def test_the_rounds_of_all_runs_under_way_add_up() -> None:
    meter = Meter(5, Clock())
    for seed in range(3):
        meter(status(0.1, 2.0, rounds=100 * (seed + 1), seed=seed))
    assert meter.rounds_per_second == 50 + 100 + 150


def test_a_run_that_ended_no_longer_adds_to_the_speed() -> None:
    meter = Meter(2, Clock())
    meter(status(0.5, seed=0, rounds=10))
    meter(status(0.5, seed=1, rounds=30))
    meter(status(1.0, seed=1, rounds=60))
    assert meter.rounds_per_second == 10
    meter(status(1.0, seed=0, rounds=20))
    assert meter.rounds_per_second == 0


def test_a_run_that_went_quiet_no_longer_adds_to_the_speed() -> None:
    clock = Clock()
    meter = Meter(2, clock)
    meter(status(0.5, seed=0, rounds=10))
    clock.now += 1.9
    meter(status(0.5, seed=1, rounds=30))
    assert meter.rounds_per_second == 40
    clock.now += 0.2
    assert meter.rounds_per_second == 30


def test_a_run_that_took_no_time_yet_has_no_speed() -> None:
    meter = Meter(1, Clock())
    meter(status(0.1, 0.0))
    assert meter.rounds_per_second == 0


def test_a_run_that_is_read_from_disk_has_no_speed() -> None:
    meter = Meter(2, Clock())
    meter(status(1.0, 5.0, stored=True))
    assert meter.rounds_per_second == 0
    assert (meter.ended, meter.share) == (1, 0.5)


def test_the_work_done_is_the_mean_share_of_all_runs() -> None:
    meter = Meter(4, Clock())
    meter(status(0.5, seed=0))
    meter(status(0.25, seed=1))
    assert (meter.ended, meter.share) == (0, 0.1875)
    meter(status(1.0, seed=0))
    assert (meter.ended, meter.share) == (1, 0.3125)
    for seed in range(4):
        meter(status(1.0, seed=seed))
    assert (meter.ended, meter.share) == (4, 1.0)


def test_nobody_knows_how_long_it_takes_before_the_first_report() -> None:
    assert Meter(3, Clock()).seconds_left is None


def after(steps: Sequence[tuple[float, Status]], total: int) -> float:
    """Return the seconds left after reports at the given seconds."""
    clock = Clock()
    begin = clock.now
    meter = Meter(total, clock)
    for when, report in steps:
        clock.now = begin + when
        meter(report)
    return meter.seconds_left or 0.0


def test_the_time_left_is_that_of_the_work_left() -> None:
    assert after([(0, status(0.0, 0.0)), (10, status(0.25, 10.0))], 1) == pytest.approx(30)
    assert after([(0, status(0.0, 0.0)), (10, status(1.0, 10.0))], 1) == 0


def test_the_time_before_the_first_report_counts() -> None:
    assert after([(0.5, status(0.05, 0.5)), (10, status(0.5, 10.0))], 1) == pytest.approx(10)


def test_the_time_left_is_for_all_runs() -> None:
    steps = [(0, status(0.0, 0.0)), (10, status(0.5, 10.0, seed=0)), (10, status(0.5, 10.0, seed=1))]
    assert after(steps, 4) == pytest.approx(30)


def test_runs_that_are_read_from_disk_do_not_make_the_others_look_fast() -> None:
    stored = [(0.0, status(1.0, 99.0, seed=seed, stored=True)) for seed in range(1, 10)]
    left = after([*stored, (0.0, status(0.0, 0.0)), (10.0, status(0.5, 10.0))], 10)
    assert left == pytest.approx(10), "half of the one run that runs took 10 s, so the other half takes 10 s"


def test_the_work_before_a_stop_does_not_make_a_resumed_run_look_fast() -> None:
    left = after([(0.0, status(0.8, 80.0, began=0.8)), (10.0, status(0.9, 90.0, began=0.8))], 1)
    assert left == pytest.approx(10), "a tenth takes 10 s, and a tenth is left"


def test_no_time_is_left_where_everything_was_stored() -> None:
    assert after([(0.0, status(1.0, 99.0, seed=seed, stored=True)) for seed in range(3)], 3) == 0


# -- what is said of a run -----------------------------------------------------------------------------------


def test_a_run_is_described_by_loss_savings_and_speed() -> None:
    meter = Meter(1, Clock())
    report = status(0.5, 2.0, rounds=100, saved=0.63)
    assert describe(report, meter) == "loss 0.1235, 63 % of uploads saved"
    meter(report)
    assert describe(report, meter) == "loss 0.1235, 63 % of uploads saved, 50 rounds/s"


def test_a_run_among_others_is_named() -> None:
    assert describe(status(0.5, seed=7), Meter(2, Clock())).startswith("lasg-wk2 seed 7: loss ")


def test_nothing_was_saved_before_the_first_round(tmp_path: Path) -> None:
    made = made_up(tmp_path, small("sgd"), [(0, 0, 0.7)], "diverged")
    assert Status.from_run(made).saved == 0, "sgd saves nothing, ever"


# -- lines in a log ------------------------------------------------------------------------------------------


def lines_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Let standard error be a file; return what reads its lines."""
    file = io.StringIO()
    monkeypatch.setattr(live, "err", Console(file=file, force_terminal=False, width=120, markup=False, highlight=False))
    return lambda: file.getvalue().splitlines()


def test_what_takes_less_than_five_seconds_says_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    with following(1, "digits") as report:
        for i in range(50):
            clock.now += 4.9 / 50
            report(status(i / 50, i / 10))
        report(status(1.0, 4.9))
    assert lines() == []


def test_a_log_gets_a_line_at_most_every_five_seconds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    begin, when = clock.now, [0.0]
    with following(1, "digits") as report:
        for i in range(1, 300):
            clock.now = begin + i * 0.2
            before = len(lines())
            report(status(min(0.999, i / 300), i * 0.2))
            assert len(lines()) <= before + 1
            if len(lines()) > before:
                when.append(clock.now - begin)
    assert len(when) == 12
    assert all(later - earlier >= LOG_SECONDS for earlier, later in pairwise(when))
    assert len(lines()) == len(when) - 1 + 1, "and the last line says that it is done"


def test_a_line_says_how_far_how_well_and_how_long_still(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    with following(1, "lasg-wk2") as report:
        report(status(0.0, 0.0, rounds=0))
        clock.now += 10
        report(status(0.25, 10.0, rounds=500, saved=0.63))
    assert lines()[0] == "lasg-wk2: 25 %; loss 0.1235, 63 % of uploads saved, 50 rounds/s, 30 s left"


def test_a_line_about_several_runs_counts_those_that_ended(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    with following(4, "digits") as report:
        report(status(0.0, 0.0, seed=0))
        clock.now += 4
        report(status(1.0, 4.0, seed=0))
        report(status(0.0, 0.0, seed=1))
        clock.now += 4
        report(status(0.6, 4.0, rounds=400, seed=1))
    assert lines()[0].startswith("digits: 1 of 4 runs, 40 %; lasg-wk2 seed 1: loss 0.1235, 0 % of uploads saved, ")
    assert lines()[0].endswith("100 rounds/s, 12 s left")


def test_the_last_line_says_how_long_it_took(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    with following(1, "digits") as report:
        clock.now += 6
        report(status(0.5, 6.0))
        clock.now += 6
        report(status(1.0, 12.0))
        clock.now += 0.3
    assert lines()[-1] == "digits: done in 12 s"
    assert sum("done in" in line for line in lines()) == 1


def test_what_failed_is_not_done(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    with pytest.raises(RuntimeError), following(1, "digits") as report:
        failing(clock, report)
    assert len(lines()) == 1
    assert "done" not in lines()[0]


def failing(clock: Clock, report: Callable[[Status], None]) -> None:
    clock.now += 6
    report(status(0.5, 6.0))
    raise RuntimeError


def test_a_long_line_is_one_line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    name = "libsvm:" + "/a long [/path]" * 20
    with following(2, name) as report:
        clock.now += 6
        report(status(0.5, 6.0))
    assert [line.startswith(f"{name}: ") for line in lines()] == [True, True]


def test_a_log_has_no_colours_and_no_bars(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    with following(2, "digits") as report:
        clock.now += 6
        report(status(0.5, 6.0))
    assert not re.search("[\x1b\r━╸]", "".join(lines()))


def test_data_that_is_fetched_is_told_in_megabytes(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(monkeypatch)
    with live.fetching() as told:
        clock.now += 6
        told("covtype.data.gz", 5_000_000, 11_000_000)
    assert lines() == ["covtype.data.gz: 5 of 11 MB"]


def test_a_count_is_told_with_what_is_under_way_and_the_time_left(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_of(monkeypatch)
    with live.counting(400, "theory check") as tell:
        clock.now += 6
        tell(100, "convex, sgd")
        clock.now += 1
        tell(100, "too soon for a line")
    assert lines() == ["theory check: 25 %; convex, sgd, 18 s left"]


# -- a terminal ----------------------------------------------------------------------------------------------


def terminal(monkeypatch: pytest.MonkeyPatch, width: int = 80) -> Callable[[], str]:
    """Let standard error be a terminal; return what reads all that was ever on it, without colours."""
    file = io.StringIO()
    made = Console(
        file=file, force_terminal=True, width=width, markup=False, highlight=False, _environ={"TERM": "xterm"}
    )
    monkeypatch.setattr(live, "err", made)
    return lambda: re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize(("total", "left"), [(1, 10), (2, 30)])
def test_a_terminal_shows_loss_savings_speed_and_time_left(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, width: int, total: int, left: int
) -> None:
    shown = terminal(monkeypatch, width)
    with following(total, "12 algorithms on digits") as report:
        report(status(0.0, 0.0, rounds=0))
        clock.now += 10
        report(status(0.5, 10.0, rounds=12_500, saved=0.63))
    for words in ("12 algorithms on digits", "loss 0.1235", "63 % of uploads saved", "1250 rounds/s", f"{left} s left"):
        assert words in shown(), f"{words} is cut off in a terminal of {width} columns"


def test_a_terminal_shows_how_far_a_count_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with live.counting(4, "theory check") as tell:
        tell(1, "convex, sgd")
    assert "theory check: convex, sgd" in shown()


def test_a_terminal_shows_how_far_one_run_is(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with following(1, "lasg-wk2") as report:
        report(status(0.37))
    assert "37 %" in shown()


@pytest.mark.parametrize(("total", "ended"), [(4, 1), (49, 1), (12, 11)])
def test_a_terminal_counts_the_runs_that_ended(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, total: int, ended: int
) -> None:
    shown = terminal(monkeypatch)
    with following(total, "digits") as report:
        for seed in range(ended):
            report(status(1.0, seed=seed))
    assert re.search(rf"\b{ended}(/| of ){total}\b", shown())


def test_runs_that_are_half_done_are_not_counted_as_ended(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with following(4, "digits") as report:
        report(status(0.5, seed=0))
        report(status(0.5, seed=1))
    assert not re.search(r"\b[1-4](/| of )4\b", shown()), "no run has ended"


def test_a_terminal_is_left_as_it_was(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with following(2, "digits") as report:
        clock.now += 60
        report(status(0.5, 60.0))
        clock.now += 60
        report(status(1.0, 120.0))
    assert "done in" not in shown()
    assert "2 of 2 runs" not in shown(), "lines are for logs"


@pytest.mark.parametrize("name", ["libsvm:a[/b].txt", "libsvm:a[b].txt", "[red]x"])
def test_a_name_with_brackets_is_shown_as_it_is(clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shown = terminal(monkeypatch, 200)
    with following(2, name) as report:
        report(status(0.5))
    assert name in shown()


@pytest.mark.parametrize("name", ["a[/b].libsvm", "a[b].libsvm"])
def test_a_file_with_brackets_in_its_name_is_fetched(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shown = terminal(monkeypatch, 200)
    with live.fetching() as told:
        told(name, 1, 2)
    assert name in shown()


# -- a run ---------------------------------------------------------------------------------------------------


def test_the_reports_of_a_run_lead_to_its_end(tmp_path: Path) -> None:
    meter, seen = Meter(1), list[float]()

    def report(found: Status) -> None:
        meter(found)
        seen.append(meter.share)

    found = run(small("lasg-wk2", iterations=400), tmp_path / "run", report=report)
    assert seen == sorted(seen)
    assert (seen[-1], meter.ended, meter.seconds_left, meter.rounds_per_second) == (1.0, 1, 0, 0)
    assert found.status == "done"
    assert all(share < 1 for share in seen[:-1])
