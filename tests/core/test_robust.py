"""The bound on how much one worker adds to a round: a function of its uploads, the same wherever they are heard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lasg.core.arrays import AT_ONCE
from lasg.core.belief import Listener
from lasg.core.codecs import Dense
from lasg.core.robust import MedianClip
from lasg.core.stages import Stages
from lasg.errors import LasgError
from tests.core.toy import KINDS, as_kind, numpy_of

each_kind = pytest.mark.parametrize("kind", KINDS)
EQUAL = np.ones(3)


@each_kind
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_tensor_is_scaled_down_to_the_median_norm_and_never_up(kind: str, dtype: str) -> None:
    rows = as_kind(np.array([[3.0, 4.0, 1.0], [6.0, 8.0, -2.0], [0.3, 0.4, 4.0]]), kind, dtype)
    before = numpy_of(rows).copy()
    bounded = MedianClip().for_shapes(((2,), (1,))).bound(rows, EQUAL)
    assert type(bounded) is type(rows)
    assert bounded.dtype == rows.dtype
    expected = [[3.0, 4.0, 1.0], [3.0, 4.0, -2.0], [0.3, 0.4, 2.0]]
    np.testing.assert_allclose(numpy_of(bounded), expected, rtol=1e-6)
    np.testing.assert_array_equal(numpy_of(rows), before)  # the workers keep what they said


@each_kind
def test_of_two_in_the_middle_the_lower_one_bounds(kind: str) -> None:
    rows = as_kind(np.array([[1.0], [2.0], [3.0], [4.0]]), kind, "float64")
    np.testing.assert_allclose(numpy_of(MedianClip().bound(rows, np.ones(4))), [[1.0], [2.0], [2.0], [2.0]])


def test_a_worker_with_more_data_may_say_more() -> None:
    weights = np.array([0.2, 0.6, 0.2])
    rows = np.array([[0.2], [0.6], [0.4]])
    np.testing.assert_allclose(MedianClip().bound(rows, weights), [[0.2], [0.6], [0.2]])


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30, 1e300])
def test_no_size_of_one_upload_moves_the_sum_by_more_than_the_others_do(size: float) -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [size, 0.0]])
    bounded = MedianClip().bound(rows, EQUAL)
    assert np.isfinite(bounded).all()
    assert np.linalg.norm(bounded, axis=-1).max() <= 1 + 1e-12


def test_one_upload_alone_and_zeros_are_left_as_they_are() -> None:
    alone = np.array([[5.0, 7.0]])
    assert MedianClip().bound(alone, np.ones(1)) is alone
    zeros = np.zeros((3, 2))
    np.testing.assert_array_equal(MedianClip().bound(zeros, EQUAL), zeros)
    np.testing.assert_array_equal(MedianClip().bound(np.ones((3, 2)), np.array([0.0, 0.5, 0.5]))[0], [1.0, 1.0])


@each_kind
@pytest.mark.parametrize("p", [5, AT_ONCE // 2 + 3])
def test_what_is_heard_at_once_and_what_comes_as_messages_add_up_to_the_same(kind: str, p: int) -> None:
    """Long vectors are heard in pieces; a bound must still see all of a round."""
    rng = np.random.default_rng(0)
    rows = as_kind(rng.normal(size=(3, p)) * [[1.0], [50.0], [2.0]], kind, "float64")
    weights = np.array([0.5, 0.3, 0.2])
    who = np.array([0, 1, 2])
    options: dict[str, Any] = {"robust": MedianClip(), "weights": weights}
    heard, took = (Listener("residual", Dense(), 3, rows[0], **options) for _ in range(2))
    at_once = heard.news(heard.hear(rows, who))
    came = took.take(Dense().encode(rows, lambda: np.zeros(0)), who)
    assert at_once is not None
    assert came is not None
    np.testing.assert_allclose(numpy_of(came.vector), numpy_of(at_once.vector), rtol=0, atol=1e-12)
    bounded = numpy_of(MedianClip().bound(rows, weights)).sum(0)
    np.testing.assert_allclose(numpy_of(came.vector), bounded, rtol=0, atol=1e-12)
    assert np.abs(bounded - numpy_of(rows).sum(0)).max() > 1


def test_a_bound_that_is_none_is_refused_in_one_line() -> None:
    with pytest.raises(
        LasgError, match=r"^unknown bound on the workers' influence 'mean': one of median-clip, trimmed, none$"
    ):
        Stages(belief="residual", robust="mean")  # type: ignore[arg-type]
