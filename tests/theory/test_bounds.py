"""What the theorems allow and promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lasg.errors import LasgError
from lasg.theory.bounds import ASSUMPTIONS, Known, Nonconvex, Quantised, StronglyConvex
from lasg.theory.names import name_of

KNOWN = Known(L=2.0, mu=0.5, M=4, D=3, variance=6.0, gap=10.0, B=5.0, p=16, bits=4)


def test_the_values_worked_out_by_hand() -> None:
    """sqrt(M) D = 6."""
    plain, quantised, convex = Nonconvex(KNOWN), Quantised(KNOWN), StronglyConvex(KNOWN)
    assert plain.largest_step == pytest.approx(1 / (2 * 2 + 4 / 3 * 6 * 2))
    assert plain.largest_c() == pytest.approx(2 * 4 / 18)
    assert plain.bound(100, 0.01) == pytest.approx((10 + 100 * (4.5 + 72) * 2 * 1e-4 * 6) / (0.5 * 100 * 0.01))
    assert quantised.largest_step == pytest.approx(1 / (2 * 2 + 2 * 6 * 2))
    assert quantised.largest_c() == pytest.approx(2 * 4 / 24)
    noise = 6 + 4 * (16 / 49) * 5 / 2
    assert quantised.bound(100, 0.01) == pytest.approx((10 + 100 * (6 + 108) * 2 * 1e-4 * noise) / (0.5 * 100 * 0.01))
    assert pytest.approx(4 * (2 + 2 / 3 * 6 * 2) / 0.5) == convex.K0
    assert convex.schedule()(0) == pytest.approx(2 / (0.5 * 80))
    R = (4.5 + 72) * 2 * 6
    assert convex.bound(1000) == pytest.approx((79 / 1079) ** 2 * 10 + 4 * R * 1000 / (0.25 * 1079**2))


def test_with_the_papers_step_the_bound_is_below_the_papers_last_line() -> None:
    """(4 L + 8/3 sqrt(M) D L) gap / K + 2 gap / (c_eta sqrt(K)) + c_eta (9 + 24 sqrt(M) D) L noise / sqrt(K)."""
    plain = Nonconvex(KNOWN)
    for K in (1, 10, 1000, 10**6):
        for c_eta in (0.01, 1.0, 30.0):
            eta = plain.schedule(K, c_eta).eta
            last = (4 * 2 + 8 / 3 * 6 * 2) * 10 / K + 2 * 10 / (c_eta * K**0.5)
            last += c_eta * (9 + 24 * 6) * 2 * 6 / K**0.5
            assert plain.bound(K, eta) <= last * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["L", "D", "M", "variance", "gap", "B", "p"]),
    by=st.integers(2, 5),
    K=st.integers(1, 10_000),
)
def test_bounds_grow_with_what_makes_a_problem_harder(name: str, by: int, K: int) -> None:
    harder = replace(KNOWN, **{name: by * getattr(KNOWN, name)})
    eta = Quantised(replace(KNOWN, L=50.0, M=100, D=20)).largest_step
    for theorem in (Nonconvex, Quantised):
        assert theorem(harder).bound(K, eta) >= theorem(KNOWN).bound(K, eta)
        assert theorem(harder).largest_step <= theorem(KNOWN).largest_step
    assert StronglyConvex(harder).K0 >= StronglyConvex(KNOWN).K0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10_000))
def test_bounds_fall_with_the_rounds(K: int) -> None:
    plain, convex = Nonconvex(KNOWN), StronglyConvex(KNOWN)
    assert plain.bound(2 * K, plain.best_step(2 * K)) < plain.bound(K, plain.best_step(K))
    late = 10 * int(convex.K0) + K
    assert convex.bound(2 * late) < convex.bound(late)


def test_the_best_step_has_the_least_bound() -> None:
    plain = Nonconvex(KNOWN)
    best = plain.best_step(10**5)
    assert best < plain.largest_step
    assert plain.bound(10**5, best) <= min(plain.bound(10**5, share * best) for share in (0.9, 1.1))
    assert Nonconvex(replace(KNOWN, variance=0.0)).best_step(10) == plain.largest_step


@pytest.mark.parametrize(
    ("theorem", "missing"), [(StronglyConvex, "mu"), (Quantised, "B"), (Quantised, "p"), (Quantised, "bits")]
)
def test_a_theorem_says_which_number_it_lacks_and_which_assumption_gives_it(theorem: Any, missing: str) -> None:
    assumption = next(label for label, names in ASSUMPTIONS.items() if missing in names)
    without: dict[str, Any] = {missing: None}
    with pytest.raises(LasgError, match=f"the {name_of(theorem.label)} needs {missing}: .*{name_of(assumption)}"):
        theorem(replace(KNOWN, **without))
    Nonconvex(replace(KNOWN, **without))


@pytest.mark.parametrize(
    "wrong", [{"L": 0.0}, {"mu": -1.0}, {"mu": 3.0}, {"M": 0}, {"D": 1.5}, {"variance": -1.0}, {"gap": float("inf")}]
)
def test_numbers_that_no_problem_has_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LasgError, match=next(iter(wrong))):
        replace(KNOWN, **wrong)


def test_beyond_its_step_a_theorem_promises_nothing() -> None:
    with pytest.raises(LasgError, match="promises nothing"):
        Nonconvex(KNOWN).bound(10, 1.0)
