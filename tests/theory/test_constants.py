"""The constants of Section 4 against values worked out another way, and the identities of the appendix."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lasg.errors import LasgError
from lasg.theory import constants as of
from lasg.theory.bounds import Known, Nonconvex, Quantised, StronglyConvex, Theorem

KINDS = pytest.mark.parametrize("factors", [of.PLAIN, of.QUANTISED], ids=["plain", "quantised"])

# The appendix's numbers as fractions: of eta, of sqrt(M) L a move, of L eta^2, of c_d gamma_1 eta^2, of gamma_1 eta^2.
PRINTED = {
    of.PLAIN: (Fraction(1), Fraction(1, 12), Fraction(9, 2), Fraction(6), Fraction(18)),
    of.QUANTISED: (Fraction(3, 2), Fraction(1, 6), Fraction(6), Fraction(8), Fraction(24)),
}


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    L = draw(st.floats(1e-2, 1e2))
    return {
        "L": L,
        "mu": L * draw(st.floats(1e-3, 1.0)),
        "M": draw(st.integers(1, 50)),
        "D": draw(st.integers(1, 30)),
        "variance": draw(st.floats(0, 100)),
        "gap": draw(st.floats(0, 100)),
        "B": draw(st.floats(0.1, 10)),
        "p": draw(st.integers(1, 10_000)),
        "bits": draw(st.integers(2, 16)),
    }


shares = st.floats(0.01, 1.0)


def exact(factors: of.Factors) -> dict[str, Any]:
    """All constants in rational arithmetic, with sqrt(M) = 3, D = 3 and uneven c_d."""
    step, drift, noise, by_moves, by_noise = PRINTED[factors]
    L, root, eta, c = Fraction(7, 5), Fraction(3), Fraction(1, 40), [Fraction(1, 2), Fraction(1, 3), Fraction(1, 4)]
    weights = [(step * eta + 1 / (2 * L)) * c_d + drift * root * L for c_d in c]
    # gamma_d = gamma_{d+1} + weight_d + by_moves c_d gamma_1 eta^2: write gamma_d = a_d + b_d gamma_1 from d = D down.
    a, b = [Fraction(0)], [Fraction(0)]
    for weight, c_d in zip(reversed(weights), reversed(c), strict=True):
        a.append(a[-1] + weight)
        b.append(b[-1] + by_moves * c_d * eta**2)
    first = a[-1] / (1 - b[-1])
    gamma = [one + other * first for one, other in zip(reversed(a[1:]), reversed(b[1:]), strict=True)]
    return {
        "weights": weights,
        "gamma": gamma,
        "B_0": eta - (L + 2 * first) * eta**2,
        "B_1": (noise + 6 * root * 3) * L * eta**2 + by_noise * first * eta**2,
        "noise": (noise + 6 * root * 3) * L * eta**2,
        "gradient": eta - L * eta**2,
    }


@KINDS
def test_every_constant_is_what_rational_arithmetic_gives(factors: of.Factors) -> None:
    expected = exact(factors)
    setting, eta = of.Setting(L=7 / 5, M=9, c=(1 / 2, 1 / 3, 1 / 4), factors=factors), 1 / 40
    gamma = of.gammas(setting, eta)
    assert gamma == pytest.approx([float(one) for one in expected["gamma"]], rel=1e-13)
    assert of.gamma_1(setting, eta) == pytest.approx(float(expected["gamma"][0]), rel=1e-13)
    weights = [of.move_weight(setting, eta, c_d) for c_d in setting.c]
    assert weights == pytest.approx([float(one) for one in expected["weights"]], rel=1e-13)
    assert of.B_0(setting, eta, gamma) == pytest.approx(float(expected["B_0"]), rel=1e-13)
    assert of.B_1(setting, eta, gamma) == pytest.approx(float(expected["B_1"]), rel=1e-13)
    assert of.noise_weight(setting, eta) == pytest.approx(float(expected["noise"]), rel=1e-13)
    assert of.gradient_weight(setting, eta) == pytest.approx(float(expected["gradient"]), rel=1e-13)


@KINDS
@settings(max_examples=40, deadline=None)
@given(
    L=st.floats(0.1, 10),
    M=st.integers(1, 30),
    c=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    share=st.floats(0.01, 0.9),
    pull=st.floats(0, 0.9),
)
def test_gamma_solves_the_linear_equations(
    factors: of.Factors, L: float, M: int, c: list[float], share: float, pull: float
) -> None:
    """Of the proofs of all three theorems, solved by numpy. mu eta D takes `pull` of what the step leaves over."""
    D = len(c)
    eta = min(1 / L, math.sqrt(share / (factors.moved_by_moves * max(sum(c), 1e-9))))
    free = 1 - factors.moved_by_moves * sum(c) * eta**2
    mu = pull * free / (2 * D * eta)
    step, drift, _, by_moves, _ = map(float, PRINTED[factors])
    system, right = np.zeros((D, D)), np.zeros(D)
    for d in range(D):
        system[d, d] -= 1
        if d + 1 < D:
            system[d, d + 1] += 1
        system[d, 0] += by_moves * c[d] * eta**2 + 2 * mu * eta
        right[d] = -((step * eta + 1 / (2 * L)) * c[d] + drift * math.sqrt(M) * L)
    setting = of.Setting(L=L, M=M, c=tuple(c), factors=factors)
    found = of.gammas(setting, eta, mu)
    np.testing.assert_allclose(found, np.linalg.solve(system, right), rtol=1e-7)
    assert found[0] == pytest.approx(of.gamma_1(setting, eta, mu), rel=1e-9)
    assert list(found) == sorted(found, reverse=True)
    A = of.A(setting, eta, found)
    assert pytest.approx([-2 * mu * eta * found[0]] * D, rel=1e-7, abs=1e-9 * found[0]) == A


def theorems(numbers: dict[str, Any]) -> list[Theorem]:
    known = Known(**numbers)
    return [Nonconvex(known), Quantised(known), StronglyConvex(known)]


def largest(theorem: Theorem, share: float) -> tuple[float, float, float]:
    """A step the theorem allows, the largest c_d at it, and mu where it counts."""
    if isinstance(theorem, StronglyConvex):
        eta = theorem.schedule()(0)
        return eta, theorem.largest_c(), theorem.mu
    assert isinstance(theorem, Nonconvex)
    eta = share * theorem.largest_step
    return eta, theorem.largest_c(eta), 0.0


@settings(max_examples=40, deadline=None)
@given(problems(), shares)
def test_what_the_theorems_allow_keeps_their_promises(numbers: dict[str, Any], share: float) -> None:
    """gamma_1 <= sqrt(M) D L / 3 (/ 2 quantised), B_0 >= eta / 2, B_1 <= growth L eta^2, A_d <= -2 mu B_0 gamma_d."""
    for theorem in theorems(numbers):
        top, c_d, mu = largest(theorem, share)
        setting = theorem.setting(c_d)
        gamma = of.gammas(setting, top, mu)
        assert gamma[0] <= theorem.largest_gamma * (1 + 1e-9)
        for eta in (top, 0.3 * top, 1e-3 * top):
            assert of.B_0(setting, eta, gamma) >= eta / 2 * (1 - 1e-9)
            assert of.B_1(setting, eta, gamma) <= theorem.growth * theorem.known.L * eta**2 * (1 + 1e-9)
            pull = 2 * mu * of.B_0(setting, eta, gamma)
            for A_d, gamma_d in zip(of.A(setting, eta, gamma), gamma, strict=True):
                assert A_d <= -pull * gamma_d + 1e-9 * gamma[0]


@settings(max_examples=40, deadline=None)
@given(problems(), shares)
def test_the_step_never_limits_c_d_once_it_obeys_its_own_bound(numbers: dict[str, Any], share: float) -> None:
    """min{1 / (12 D eta^2), sqrt(M) L^2 / 18} is always the second."""
    for theorem in theorems(numbers):
        _, c_d, _ = largest(theorem, share)
        assert c_d == theorem.factors.curvature * math.sqrt(numbers["M"]) * numbers["L"] ** 2


@pytest.mark.parametrize(("M", "D"), [(1, 1), (4, 1), (1, 4), (4, 2), (36, 1)])
def test_the_printed_k0_does_not_ensure_half_the_step(M: int, D: int) -> None:
    """The proof goes on with B_0 >= eta / 2, from gamma_1 <= sqrt(M) D L / 3: that gives B_0 >= 0.

    Where sqrt(M) D is small the true gamma_1 does not save it either.
    """
    theorem = StronglyConvex(Known(L=100.0, mu=1.0, M=M, D=D, variance=1.0, gap=1.0))
    assert pytest.approx(2 * theorem.printed_K0) == theorem.K0
    eta = 2 / (theorem.mu * theorem.printed_K0)
    setting = theorem.setting(theorem.largest_c(eta))
    assert of.B_0(setting, eta, [theorem.largest_gamma]) == pytest.approx(0, abs=1e-12)
    assert 0 < of.B_0(setting, eta, of.gammas(setting, eta, theorem.mu)) < 0.49 * eta


@settings(max_examples=40, deadline=None)
@given(st.floats(3, 500), st.integers(1, 300))
def test_the_products_of_the_strongly_convex_proof_telescope(K0: float, K: int) -> None:
    """The last lines of the proof: both closed forms, and the inequality to (K + K0 - 1)^2."""
    k = np.arange(K)
    factors = 1 - 2 / (k + K0)
    end = (K + K0 - 2) * (K + K0 - 1)
    assert np.prod(factors) == pytest.approx((K0 - 2) * (K0 - 1) / end, rel=1e-9)
    after = np.append(np.cumprod(factors[::-1])[::-1][1:], 1.0)
    np.testing.assert_allclose(after, (k + K0 - 1) * (k + K0) / end, rtol=1e-9)
    assert np.prod(factors) <= ((K0 - 1) / (K + K0 - 1)) ** 2 * (1 + 1e-9)
    assert (4 / (k + K0) ** 2 * after).sum() <= 4 * K / (K + K0 - 1) ** 2 * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_strongly_convex_bound_dominates_its_recursion(numbers: dict[str, Any]) -> None:
    """V^{k+1} <= (1 - mu eta_k) V^k + R eta_k^2, iterated."""
    theorem = StronglyConvex(Known(**numbers))
    steps, V = theorem.schedule(), theorem.known.gap
    for k in range(40):
        V = (1 - theorem.mu * steps(k)) * V + theorem.growth * theorem.known.L * theorem.noise * steps(k) ** 2
        assert theorem.bound(k + 1) >= V * (1 - 1e-9)


def test_v_counts_the_newest_move_first_and_moves_before_the_first_as_zero() -> None:
    assert of.lyapunov(2.0, [10.0, 100.0], (3.0, 2.0, 1.0)) == 2 + 30 + 200
    assert of.lyapunov(2.0, [], (3.0, 2.0, 1.0)) == 2
    with pytest.raises(LasgError, match="at most D = 1"):
        of.lyapunov(0.0, [1.0, 1.0], (1.0,))


def test_the_quantisers_variance_is_alistarhs_and_grows_with_the_gradients_bound() -> None:
    assert of.quantiser_variance(16, 4) == pytest.approx(min(16 / 49, 4 / 7))
    assert of.quantiser_variance(10_000, 2) == pytest.approx(100.0)
    alone = of.effective_variance(5.0, 3, 16, 4, 1.0) - 5.0
    assert of.effective_variance(5.0, 3, 16, 4, 10.0) - 5.0 == pytest.approx(10 * alone)
    with pytest.raises(LasgError, match="at least 2 bits"):
        of.quantiser_variance(16, 1)


def test_a_step_beyond_which_no_gamma_exists_is_refused() -> None:
    setting = of.Setting(L=1.0, M=4, c=(1.0, 1.0))
    with pytest.raises(LasgError, match="Take a smaller eta or c_d"):
        of.gammas(setting, 1.0)


@pytest.mark.parametrize("wrong", [{"L": 0.0}, {"M": 0}, {"c": ()}, {"c": (-1.0,)}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    settings_: dict[str, Any] = {"L": 1.0, "M": 1, "c": (1.0,)}
    with pytest.raises(LasgError, match=r"L must be|at least one worker"):
        of.Setting(**(settings_ | wrong))
