"""What lasg's own estimators make of gradients: their formulas, written out, in every kind and precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lasg.core.codecs import State
from lasg.core.estimators import Estimator, Momentum, MomentumCorrection, Storm
from lasg.core.rules import Record
from lasg.errors import LasgError
from tests.core.toy import KINDS, as_kind, numpy_of

W, P, ROUNDS = 3, 6, 15
each_kind = pytest.mark.parametrize("kind", KINDS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
Reference = Callable[[npt.NDArray[np.float64], npt.NDArray[np.float64], dict[str, Any]], npt.NDArray[np.float64]]


def momentum(g: npt.NDArray[np.float64], _: Any, kept: dict[str, Any]) -> npt.NDArray[np.float64]:
    kept["v"] = 0.9 * kept["v"] + 0.1 * g if "v" in kept else g
    return kept["v"]  # type: ignore[no-any-return]


def correction(g: npt.NDArray[np.float64], _: Any, kept: dict[str, Any]) -> npt.NDArray[np.float64]:
    kept["u"] = 0.9 * kept.get("u", 0.0) + g
    return kept["u"]  # type: ignore[no-any-return]


def storm(g: npt.NDArray[np.float64], probe: npt.NDArray[np.float64], kept: dict[str, Any]) -> npt.NDArray[np.float64]:
    """One worker's STORM, with the weight adapted as its docstring says."""
    k = kept.setdefault("k", 0)
    if k == 0:
        kept.update(v=g, s2=0.0, d2=0.0)
    else:
        rate = max(0.05, 1 / k)
        kept["s2"] += rate * (((probe - kept["v"]) ** 2).sum() - kept["s2"])
        kept["d2"] += rate * (((g - probe) ** 2).sum() - kept["d2"])
        a = max(1 / (k + 1), min(max(np.sqrt(kept["d2"] / kept["s2"]), 0.003), 1.0))
        kept["v"] = g + (1 - a) * (kept["v"] - probe)
    kept["k"] = k + 1
    return kept["v"]  # type: ignore[no-any-return]


CASES: dict[str, tuple[Estimator, Reference]] = {
    "momentum": (Momentum(0.9), momentum),
    "correction": (MomentumCorrection(0.9), correction),
    "storm": (Storm(), storm),
}


def pick(state: State, who: list[int]) -> State:
    return {name: value[who] for name, value in state.items()}


@each_kind
@each_dtype
@pytest.mark.parametrize("name", CASES)
def test_an_estimate_is_the_formulas_in_the_models_own_precision(name: str, kind: str, dtype: str) -> None:
    """Workers begin in different rounds, and none computes in all: each has a past of its own."""
    estimator, reference = CASES[name]
    like = as_kind(np.zeros(P), kind, dtype)
    state = estimator.init(W, like)
    kept: list[dict[str, Any]] = [{} for _ in range(W)]
    for k in range(ROUNDS):
        who = [m for m in range(W) if k >= 2 * m and (k + m) % 4]
        if not who:
            continue
        rng = np.random.default_rng(k)
        g = rng.normal(size=(len(who), P)) + np.arange(P)
        probe = g + 0.1 * rng.normal(size=g.shape)
        now = Record(k=k, grad=as_kind(g, kind, dtype), probe=as_kind(probe, kind, dtype))
        found, after = estimator.update(now, pick(state, who))
        assert found.dtype == like.dtype
        assert type(found) is type(like)
        for part, value in after.items():
            assert value.dtype == like.dtype, part
            state[part][who] = value
        expected = [reference(g[i], probe[i], kept[m]) for i, m in enumerate(who)]
        tolerance = 1e-12 if dtype == "float64" else 1e-4
        np.testing.assert_allclose(numpy_of(found), expected, rtol=tolerance, atol=tolerance)


@each_kind
def test_what_was_said_is_cleared_in_the_momentum_and_nothing_else_is(kind: str) -> None:
    state = {"u": as_kind([[1.0, 2.0, -3.0], [4.0, 5.0, 6.0]], kind)}
    decoded = as_kind([[0.0, 0.5, 0.0], [0.0, 0.0, -9.0]], kind)
    cleared = MomentumCorrection().said(decoded, state)["u"]
    np.testing.assert_array_equal(numpy_of(cleared), [[1, 0, -3], [4, 5, 0]])
    assert MomentumCorrection(mask=False).said(decoded, state) is state
    assert Momentum().said(decoded, state) is state


@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan")])
@pytest.mark.parametrize("kind", [Momentum, MomentumCorrection])
def test_a_momentum_that_is_no_share_is_refused(kind: Any, beta: float) -> None:
    with pytest.raises(LasgError, match=r"^momentum's beta must be at least 0 and below 1, got"):
        kind(beta)
