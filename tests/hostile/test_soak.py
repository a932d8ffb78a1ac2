"""A few episodes of the soak in every engine: `python -m tests.hostile.soak` does as many as there is time for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="the runs' data is scikit-learn's")
pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")

from tests.hostile import federation_soak
from tests.hostile.soak import GOOD, Soak


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation_soak, "ROUNDS", 24)


@pytest.mark.parametrize("fault", ["kill", "damaged answer"])
def test_a_federation_is_what_its_answers_give_whatever_happens_to_it(fault: str, tmp_path: Path) -> None:
    assert federation_soak.episode(fault, random.Random(fault), tmp_path / "run") == "recomputed"


@pytest.mark.parametrize("fault", ["kill", "clock jump"])
def test_a_simulated_run_ends_with_the_bits_of_an_undisturbed_one(fault: str, tmp_path: Path) -> None:
    assert Soak(tmp_path, 1, rounds=60).episode("simulation", fault) in GOOD


def test_ranks_end_with_the_bits_of_an_undisturbed_run_after_a_cut_link(tmp_path: Path) -> None:
    assert Soak(tmp_path, 1, rounds=60).episode("ranks", "cut link") in GOOD


def test_a_wrong_model_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = federation_soak.recomputed
    monkeypatch.setattr(federation_soak, "recomputed", lambda *given: real(*given) + 1e-6)
    monkeypatch.setattr(federation_soak, "ROUNDS", 3)
    assert federation_soak.episode("huge gradient", random.Random(1), tmp_path / "run") == "WRONG"
