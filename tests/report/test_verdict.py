"""The sentences of a comparison say what its numbers say, and the loss at which runs are compared was reached."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lasg.analysis.compare import BASELINE, SPENT, Spread, Summary, shared_target, summarise
from lasg.analysis.link_model import PRESETS
from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.report.verdict import baseline_of, best_of, links, name, sentences
from lasg.runs.pairs import parse_value
from lasg.runs.store import Run
from tests.runs.samples import made_up, small


def row(algorithm: str, label: str = "", *, seeds: int = 1, reached: bool = True, **counts: float) -> Summary:
    """Return a made-up summary; counts that are not given are 1000. Savings are filled in by `rows`."""
    found = {key: Spread(counts.get(key, 1000.0), 0.0) for key in (*SPENT, "seconds")} if reached else {}
    return Summary(
        label=label or algorithm,
        spec=small(algorithm, **_settings(label)),
        algorithm=algorithm,
        seeds=seeds,
        reached=seeds if reached else 0,
        diverged=0,
        counts=found,
        loss=Spread(0.5, 0.0),
        accuracy=None,
        fewer_uploads=None,
        fewer_bits=None,
    )


def _settings(label: str) -> dict[str, Any]:
    """Read the settings that a label names: qsgd bits=2."""
    return {key: parse_value(value) for key, _, value in (word.partition("=") for word in label.split()[1:])}


def rows(*shown: Summary) -> list[Summary]:
    """Fill in what was saved against sgd, as `summarise` does."""
    baseline = next((one.counts for one in shown if one.algorithm == BASELINE), {})

    def ratio(one: Summary, key: str) -> float | None:
        known = one.counts and baseline and one.counts[key].mean
        return baseline[key].mean / one.counts[key].mean if known else None

    saved = {"fewer_uploads": "uploads", "fewer_bits": "bits_up", "faster": "seconds"}
    return [Summary(**{**vars(one), **{field: ratio(one, key) for field, key in saved.items()}}) for one in shown]


# -- names ---------------------------------------------------------------------------------------------------


def test_the_twelve_are_written_as_in_the_paper_and_others_as_they_are() -> None:
    assert [name(row(one)) for one in ALGORITHMS] == [one.upper() for one in ALGORITHMS]
    assert name(row("lag-wk", "lag-wk c=0.4")) == "lag-wk c=0.4"
    assert name(row("wk2+qsgd8")) == "wk2+qsgd8"


# -- who was best --------------------------------------------------------------------------------------------


def test_the_best_is_who_sent_the_fewest_upload_bits_other_than_sgd() -> None:
    found = rows(row("sgd", bits_up=1), row("lasg-wk2", uploads=1, bits_up=50), row("qsgd", bits_up=40))
    best = best_of(found)
    assert best is not None
    assert best.label == "qsgd"


def test_who_did_not_get_there_is_neither_best_nor_the_baseline() -> None:
    found = rows(row("sgd", reached=False), row("lasg-wk2", reached=False))
    assert best_of(found) is None
    assert baseline_of(found) is None


def test_savings_are_told_against_sgd() -> None:
    found = rows(
        row("sgd", uploads=1000, bits_up=32_000, bits_total=64_000, gradients=1000),
        row("lasg-wk2", uploads=250, bits_up=8000, bits_total=40_000, gradients=1900),
    )
    assert sentences(found, 0.2) == [
        "LASG-WK2 reached loss 0.2 with 4.0x fewer uploads and 4.0x fewer upload bits than SGD (1 seed).",
        "In both directions together it sent 1.6x fewer bits; it computed 1.9x more gradients.",
    ]


def test_a_saving_below_one_says_more() -> None:
    found = rows(
        row("sgd", uploads=100, bits_up=1000, bits_total=1000, gradients=500),
        row("lag-wk", uploads=200, bits_up=1100, bits_total=30_000, gradients=100),
    )
    first, second = sentences(found, 0.2)
    assert "2.0x more uploads and 1.1x more upload bits than SGD" in first
    assert "30x more bits" in second
    assert "5.0x fewer gradients" in second


def test_no_sentence_writes_a_saving_below_one_as_a_factor() -> None:
    for uploads in (1, 50, 99, 100, 101, 150, 9999):
        found = rows(row("sgd", uploads=100), row("lag-wk", uploads=uploads))
        assert "0." not in " ".join(sentences(found, 1.0))


def test_the_number_of_seeds_is_told() -> None:
    assert "(mean of 5 seeds)" in sentences(rows(row("sgd", seeds=5), row("qsgd", seeds=5)), 0.2)[0]


def test_without_sgd_the_counts_themselves_are_told() -> None:
    for others in ([row("sgd", reached=False)], []):
        found = rows(*others, row("lasg-wk2", uploads=12_345, bits_up=4_560_000), row("qsgd", bits_up=5e6))
        (said,) = sentences(found, 0.25)
        assert said == "LASG-WK2 reached loss 0.25 with 12.3k uploads and 4.56M upload bits, the fewest bits (1 seed)."


def test_where_nobody_got_there_it_says_so() -> None:
    (said,) = sentences(rows(row("sgd", reached=False), row("qsgd", reached=False)), 0.25)
    assert said.startswith("Nobody reached")
    assert "0.25" in said
    assert sentences([], 0.25) == [said]


def test_where_sgd_alone_got_there_it_says_so() -> None:
    alone = "SGD reached loss 0.25; no other algorithm did with every seed."
    assert sentences(rows(row("sgd"), row("qsgd", reached=False)), 0.25) == [alone]
    assert sentences(rows(row("sgd")), 0.25) == ["SGD reached loss 0.25."]


def test_a_loss_that_nobody_had_to_train_for_is_told_in_a_sentence() -> None:
    nothing: dict[str, Any] = dict.fromkeys((*SPENT, "seconds"), 0.0)
    for said in sentences(rows(row("sgd", **nothing), row("lasg-wk2", **nothing)), 5):
        assert "no upload bits than" not in said, said


# -- links ---------------------------------------------------------------------------------------------------


def on(*shown: Summary) -> str:
    (said,) = links({"home": rows(*shown)})
    assert said.startswith("home: ")
    return said


def test_the_fastest_is_named_and_laziness_pays_where_it_is_lazy() -> None:
    said = on(row("sgd", seconds=100), row("lasg-wk1", seconds=80), row("lasg-wk2", seconds=25))
    assert said == "home: LASG-WK2 is the fastest, 25.0 s, 4.0x as fast as SGD. Laziness pays with LASG-WK2."


def test_local_sgd_is_named_where_it_is_the_fastest() -> None:
    shown = [row("sgd", seconds=100), row("local-sgd", seconds=20), row("lasg-wk2", seconds=50)]
    first = "home: LOCAL-SGD is the fastest, 20.0 s, 5.0x as fast as SGD."
    assert on(*shown) == f"{first} Laziness pays with LASG-WK2, 2.0x as fast as SGD."
    assert on(*shown[:2]) == f"{first} No lazy algorithm and its twin that always uploads both reached the loss."


def test_who_is_within_a_tenth_of_the_fastest_is_named_too() -> None:
    said = on(
        row("sgd", seconds=100), row("local-sgd", seconds=20), row("lasg-wk2", seconds=21), row("qsgd", seconds=23)
    )
    assert "LOCAL-SGD is the fastest, 20.0 s, 5.0x as fast as SGD (about as fast: LASG-WK2)." in said


def test_laziness_costs_time_where_the_fastest_lazy_one_is_slower() -> None:
    said = on(row("sgd", seconds=100), row("lasg-wk1", seconds=400), row("lasg-wk2", seconds=200))
    costs = "Laziness costs time: LASG-WK2, its best case, takes 2x as long as SGD."
    assert said == f"home: SGD is the fastest, 1.67 min. {costs}"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (90, "Laziness pays with LASG-PS."),
        (92, "nothing is clearly faster than SGD, 1.67 min. Laziness neither saves nor costs time"),
        (97, "LASG-PS, its best case, takes about as long as SGD."),
        (100, "SGD is the fastest, 1.67 min. Laziness neither saves nor costs time"),
        (109, "Laziness neither saves nor costs time"),
        (111, "Laziness costs time: LASG-PS, its best case, takes 1.1x as long as SGD."),
    ],
)
def test_laziness_pays_or_costs_from_a_tenth_on(seconds: float, words: str) -> None:
    assert words in on(row("sgd", seconds=100), row("lasg-ps", seconds=seconds))


@pytest.mark.parametrize("seconds", [50, 90, 97, 100, 103, 150])
def test_no_line_says_that_what_is_faster_does_not_pay(seconds: float) -> None:
    said = on(row("sgd", seconds=100), row("lasg-ps", seconds=seconds), row("local-sgd", seconds=80))
    assert "does not pay" not in said
    assert ("1.0" in said and "x as fast" in said) is False


def test_what_quantising_saves_is_not_laziness() -> None:
    said = on(row("sgd", seconds=1000), row("qsgd", seconds=100), row("laqsg-wk2", seconds=120))
    assert "QSGD is the fastest, 1.67 min, 10x as fast as SGD." in said
    assert "Laziness costs time: LAQSG-WK2, its best case, takes 1.2x as long as QSGD." in said


def test_a_lazy_algorithm_is_compared_with_its_twin_in_the_same_encoding() -> None:
    said = on(
        row("qsgd", seconds=50),
        row("laqsg-wk2", seconds=40),
        row("lasg-wk2", seconds=300),
        row("sgd", seconds=600),
    )
    assert said.endswith("Laziness pays with LASG-WK2, 2.0x as fast as SGD.")


def test_where_laziness_pays_for_some_those_for_whom_it_does_not_are_named() -> None:
    said = on(row("sgd", seconds=100), row("lasg-wk1", seconds=200), row("lasg-pse", seconds=50))
    assert said.endswith("Laziness pays with LASG-PSE, not with LASG-WK1 (2x as long).")


@pytest.mark.parametrize(
    "shown",
    [
        [row("sgd"), row("laqsg-wk2")],
        [row("qsgd"), row("lasg-wk2")],
        [row("local-sgd"), row("lasg-wk2")],
        [row("sgd"), row("local-sgd"), row("qsgd")],
        [row("sgd", reached=False), row("lasg-wk2")],
        [row("sgd"), row("lasg-wk2", reached=False)],
        [],
    ],
    ids=lambda shown: "-".join(one.label for one in shown),
)
def test_without_a_pair_nothing_is_said_about_laziness(shown: list[Summary]) -> None:
    for said in links({"home": shown, "lora": shown}):
        assert "No lazy algorithm and its twin that always uploads both reached the loss." in said or not shown
        assert "Laziness" not in said


def test_composed_algorithms_have_twins_too() -> None:
    said = on(
        row("always+qsgd2", seconds=1), row("always+qsgd8+H4", seconds=100), row("wk2+qsgd8+H4", seconds=50), row("sgd")
    )
    assert said.endswith("Laziness pays with wk2+qsgd8+H4, 2.0x as fast as always+qsgd8+H4.")


def test_every_network_gets_a_line_in_order() -> None:
    slow = rows(row("sgd", seconds=100), row("lasg-wk2", seconds=10))
    fast = rows(row("sgd", seconds=1), row("lasg-wk2", seconds=2))
    assert [line.partition(",")[0] for line in links({"lora": slow, "datacenter": fast})] == [
        "lora: LASG-WK2 is the fastest",
        "datacenter: SGD is the fastest",
    ]


def stored(folder: Path, algorithm: str, evaluations: Sequence[tuple[int, int, float]], **changes: Any) -> Run:
    spec = small(algorithm, **changes)
    return made_up(folder / spec.label, spec, evaluations)


def test_a_loss_that_is_there_from_the_start_does_not_crash(tmp_path: Path) -> None:
    evaluations = [(0, 0, 0.7), (6, 600, 0.5)]
    runs = [stored(tmp_path, algorithm, evaluations) for algorithm in ("sgd", "lasg-wk2")]
    timed = {network.name: summarise(runs, 1.0, network) for network in PRESETS.values()}
    assert links(timed) == ["Nobody reached the loss after some time on these links: there is nothing to compare."]


@pytest.mark.parametrize(
    ("always", "lazy", "key", "values"),
    [("qsgd", "laqsg-wk2", "bits", (8, 2)), ("sgd", "lasg-wk2", "eta", (0.01, 0.1))],
)
def test_a_twin_differs_in_the_rule_alone(
    tmp_path: Path, always: str, lazy: str, key: str, values: tuple[float, float]
) -> None:
    evaluations = [(0, 0, 0.7), (6, 600, 0.5)]
    other, mine = values
    runs = [
        stored(tmp_path, always, evaluations, **{key: other}),
        stored(tmp_path, always, evaluations, **{key: mine}),
        stored(tmp_path, lazy, evaluations, **{key: mine}),
    ]
    (said,) = links({"home": summarise(runs, 0.5, PRESETS["home"])})
    assert re.search(rf"(as long as|as fast as) {always} {key}={mine:g}\.$", said), said


def test_the_sgd_that_got_there_is_the_one_that_is_compared_with(tmp_path: Path) -> None:
    runs = [
        stored(tmp_path, "sgd", [(0, 0, 0.7), (6, 600, 0.6)], eta=0.01),
        stored(tmp_path, "sgd", [(0, 0, 0.7), (6, 600, 0.5)], eta=0.1),
        stored(tmp_path, "lasg-wk2", [(0, 0, 0.7), (2, 200, 0.5)], eta=0.1),
    ]
    said = sentences(summarise(runs, 0.5), 0.5)[0]
    assert "no uploads" not in said, said
    assert "3.0x fewer uploads and 3.0x fewer upload bits than sgd eta=0.1" in said


# -- the loss at which runs are compared ---------------------------------------------------------------------


def ending(folder: Path, algorithm: str, *losses: float, status: Sequence[str] = (), **changes: Any) -> list[Run]:
    """Store one made-up run a seed, which goes from a high loss down to the given one and up again."""
    found = []
    for seed, loss in enumerate(losses):
        spec = small(algorithm, seed=seed, **changes)
        rows_ = [(0, 0, 999.0), (6, 600, loss), (12, 1200, max(loss, loss * 1.5))]
        found.append(made_up(folder / spec.label, spec, rows_, status[seed] if status else "done"))
    return found


def test_runs_that_were_to_reach_a_loss_are_compared_there(tmp_path: Path) -> None:
    runs = [*ending(tmp_path, "sgd", 0.2, until={"loss": 0.25}), *ending(tmp_path, "qsgd", 0.9, until={"loss": 0.25})]
    assert shared_target(runs) == 0.25


def test_a_goal_written_as_a_whole_number_is_a_loss(tmp_path: Path) -> None:
    assert shared_target(ending(tmp_path, "sgd", 0.2, until={"loss": 1})) == 1.0


@pytest.mark.parametrize("other", [{}, {"until": {"loss": 0.4}}, {"until": {"uploads": 9}}], ids=str)
def test_runs_of_different_goals_are_compared_at_a_loss_that_all_reached(tmp_path: Path, other: dict[str, Any]) -> None:
    runs = [*ending(tmp_path, "sgd", 0.512, until={"loss": 0.25}), *ending(tmp_path, "qsgd", 0.531, **other)]
    assert shared_target(runs) == 0.54


@pytest.mark.parametrize(
    ("loss", "target"),
    [(0.512, 0.52), (0.51, 0.51), (0.0123, 0.013), (1.234, 1.3), (0.999, 1.0), (5.0, 5.0), (1e-5, 1e-5), (123.4, 130)],
)
def test_the_loss_is_rounded_up_to_two_digits(tmp_path: Path, loss: float, target: float) -> None:
    assert shared_target(ending(tmp_path, "sgd", loss)) == target


def test_the_lowest_loss_of_a_run_counts_and_the_worst_seed_of_a_series(tmp_path: Path) -> None:
    assert shared_target([*ending(tmp_path, "sgd", 0.5, 0.531, 0.4), *ending(tmp_path, "qsgd", 0.52)]) == 0.54


def test_somebody_far_above_sgd_does_not_set_the_loss(tmp_path: Path) -> None:
    runs = [*ending(tmp_path, "lag-wk", 0.9), *ending(tmp_path, "sgd", 0.201, 0.211), *ending(tmp_path, "qsgd", 0.2)]
    assert shared_target(runs) == 0.22


def test_beside_sgd_alone_somebody_far_above_sets_the_loss(tmp_path: Path) -> None:
    """Or there would be nothing to compare."""
    runs = [*ending(tmp_path, "sgd", 0.055), *ending(tmp_path, "lasg-wk2", 0.147)]
    assert shared_target(runs) == 0.15


def test_somebody_within_a_tenth_of_sgd_sets_the_loss(tmp_path: Path) -> None:
    assert shared_target([*ending(tmp_path, "sgd", 0.2), *ending(tmp_path, "lag-wk", 0.217)]) == 0.22


def test_without_sgd_the_worst_series_sets_the_loss(tmp_path: Path) -> None:
    assert shared_target([*ending(tmp_path, "qsgd", 0.2), *ending(tmp_path, "lag-wk", 0.9)]) == 0.9


def test_a_series_with_a_diverged_seed_does_not_set_the_loss(tmp_path: Path) -> None:
    runs = [*ending(tmp_path, "sgd", 0.2), *ending(tmp_path, "qsgd", 0.21, 8.0, status=["done", "diverged"])]
    assert shared_target(runs) == 0.2
    runs = [*ending(tmp_path, "sgd", 8.0, status=["diverged"], eta=0.3), *ending(tmp_path, "lag-wk", 0.5)]
    assert shared_target(runs) == 0.5


def test_where_everything_diverged_there_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="every run diverged") as error:
        shared_target(ending(tmp_path, "sgd", 0.2, 0.3, status=["diverged"] * 2))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("sgd", [-2.0, 0.0, 1e-300])
@pytest.mark.parametrize("other", [-3.0, -0.5, 0.0, 0.3])
def test_losses_of_zero_and_below_do_not_crash(tmp_path: Path, sgd: float, other: float) -> None:
    runs = [*ending(tmp_path, "sgd", sgd), *ending(tmp_path, "lag-wk", other)]
    target = shared_target(runs)
    assert summarise(runs, target)[0].complete, "sgd reached what it is compared at"


class Made(Run):
    """A run in memory."""

    @classmethod
    def of(cls, algorithm: str, loss: float) -> Run:
        made = cls(Path("nowhere"), small(algorithm), {"status": "done"})
        made.__dict__["trace"] = {"loss": np.array([2 * loss, loss])}
        return made


@given(st.floats(1e-12, 1e4))
@example(0.1200000001)
@example(0.30000000000000004)
@example(0.1)
def test_the_loss_at_which_runs_are_compared_was_reached(loss: float) -> None:
    target = shared_target([Made.of("sgd", loss)])
    assert loss <= target, "rounded up means not below"
    assert target <= 1.1 * loss + 1e-300
    assert float(f"{target:.1e}") == pytest.approx(target, rel=1e-12), "it has two digits"
