"""The network model gives the seconds that are worked out by hand here."""

from typing import Any

import numpy as np
import pytest

from lasg.analysis.link_model import PRESETS, LinkModel, Traffic, round_seconds
from lasg.core.rules import RULES, points_of
from lasg.errors import LasgError

LINK = LinkModel(name="link", latency=0.5, up=10.0, down=100.0, gradient=2.0)


def traffic(uploaded: list[list[bool]], *, server: bool = False, evaluations: int = 1, silent: float = 0) -> Traffic:
    """Return rounds with models of 200 bits and uploads of 60."""
    mask = np.array(uploaded, np.bool_)
    return Traffic(mask, server, np.full(len(mask), evaluations), 200.0, 60.0, silent)


def test_an_upload_round_is_hear_compute_answer() -> None:
    # 0.5 + 200/100 to hear the model, 2 to compute, 0.5 + 60/10 to answer
    assert round_seconds(LINK, traffic([[True, True]])).tolist() == [2.5 + 2 + 6.5]


def test_a_silent_worker_under_a_worker_rule_still_hears_computes_and_sends_its_flag() -> None:
    # 2.5 to hear, 2 x 2 to compute both gradients, 0.5 + 1/10 for the flag
    lasted = round_seconds(LINK, traffic([[False, False]], evaluations=2, silent=1))
    assert lasted.tolist() == [pytest.approx(2.5 + 4 + 0.6)]


def test_one_upload_makes_the_round_as_long_as_if_all_did() -> None:
    lasted = round_seconds(LINK, traffic([[True, False, False], [True, True, True]], silent=1))
    assert lasted[0] == lasted[1] == 11


def test_a_server_rules_silent_workers_cost_nothing() -> None:
    slow = LinkModel(name="slow", latency=(0.5, 1000.0), up=10.0, down=100.0, gradient=(2.0, 1000.0))
    lasted = round_seconds(slow, traffic([[True, False], [False, False]], server=True))
    assert lasted.tolist() == [11, 0]


def test_a_round_lasts_until_its_slowest_participant_is_done() -> None:
    mixed = LinkModel(name="mixed", latency=(0.5, 0.0, 0.0), up=(10.0, 2.0, 1e9), down=100.0, gradient=(0.0, 0.0, 7.0))
    # worker 0: 2.5 + 6.5; worker 1: 2 + 30; worker 2: 2 + 7 + 0
    assert round_seconds(mixed, traffic([[True, True, True]])).tolist() == [32]
    assert round_seconds(mixed, traffic([[True, False, True]])).tolist() == [pytest.approx(9.00000006)]


@pytest.mark.parametrize("server", [False, True])
def test_many_rounds_are_the_rounds_one_by_one(server: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((50, 7)) < 0.3
    evaluations = rng.integers(1, 3, 50)
    link = LinkModel(name="x", latency=tuple(rng.random(7)), up=tuple(rng.random(7) + 1), down=3.0, gradient=0.25)
    whole = Traffic(mask, server, evaluations, 20.0, 6.0, 1.0)
    alone = [
        round_seconds(link, whole._replace(uploaded=mask[k : k + 1], evaluations=evaluations[k : k + 1]))[0]
        for k in range(50)
    ]
    monkeypatch.setattr("lasg.analysis.link_model.CHUNK", 20)  # two rounds at once
    np.testing.assert_array_equal(round_seconds(link, whole), alone)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"latency": -1}, "latency"),
        ({"up": 0}, "up"),
        ({"down": float("nan")}, "down"),
        ({"down": float("inf")}, "down"),
        ({"gradient": "fast"}, "gradient"),
        ({"up": []}, "up"),
        ({"up": [1.0, True]}, "up"),
    ],
)
def test_a_link_that_cannot_be_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    values: dict[str, Any] = {"name": "n", "latency": 1.0, "up": 1.0, "down": 1.0, "gradient": 0.0}
    with pytest.raises(LasgError, match=f"network n: {word} must be a number"):
        LinkModel(**{**values, **change})


def test_on_a_shared_channel_answers_queue_and_the_model_is_broadcast_once() -> None:
    link = LinkModel(name="cell", latency=(0.1, 0.2, 0.1), up=10.0, down=100.0, gradient=1.0, shared=True)
    carried = traffic([[True, True, True], [True, False, True], [False, False, False]])
    alone = round_seconds(LinkModel(name="star", latency=(0.1, 0.2, 0.1), up=10.0, down=100.0, gradient=1.0), carried)
    found = round_seconds(link, carried)
    heard = 2 * 0.2 + carried.model_bits / 100 + carried.evaluations  # the slowest is ready to answer
    upload, flag = carried.upload_bits / 10, carried.silent_bits / 10
    np.testing.assert_allclose(found, heard + np.array([3 * upload, 2 * upload + flag, 3 * flag]))
    assert (found[:2] > alone[:2]).all()


def test_shared_must_be_true_or_false() -> None:
    with pytest.raises(LasgError, match="shared must be true or false"):
        LinkModel(name="cell", latency=0.1, up=1.0, down=1.0, gradient=0.0, shared=1)  # type: ignore[arg-type]


def test_a_list_of_another_number_of_workers_is_refused() -> None:
    link = LinkModel(name="three", latency=0.1, up=(1.0, 2.0, 3.0), down=1.0, gradient=0.0)
    with pytest.raises(LasgError, match="up lists 3 workers, the run has 2"):
        round_seconds(link, traffic([[True, True]]))


def test_the_presets_are_the_six_of_the_docs_fastest_first() -> None:
    assert list(PRESETS) == ["datacenter", "cross-region", "home", "wireless", "mobile", "lora"]
    ups = [link.up for link in PRESETS.values()]
    assert ups == sorted(ups, reverse=True)


def test_a_worker_computes_at_two_models_except_where_they_coincide() -> None:
    k = np.arange(7)
    assert points_of(RULES["always"].probe, k, 3).tolist() == points_of(RULES["ps"].probe, k, 3).tolist() == [1] * 7
    assert (
        points_of(RULES["wk2"].probe, k, 3).tolist()
        == points_of(RULES["pse"].probe, k, 3).tolist()
        == [1, 2, 2, 2, 2, 2, 2]
    )
    assert points_of(RULES["wk1"].probe, k, 3).tolist() == [1, 2, 2, 1, 2, 2, 1]
    assert [points_of(RULES["wk1"].probe, i, 3) for i in range(4)] == [1, 2, 2, 1]
