"""Names at the right ends of curves: all of a crowded panel, none over another, none where all end at one place."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lasg.report.end_labels import CROWDED, End, label_ends, spread


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12).map(sorted))
def test_places_are_a_gap_apart_in_their_order_and_within_the_panel(wanted: list[float]) -> None:
    placed = spread(np.array(wanted), 0.08)
    assert (np.diff(placed) >= 0.08 - 1e-9).all()
    assert placed.min() >= 0
    assert placed.max() <= 1 + 1e-9


def test_places_that_are_far_apart_stay() -> None:
    np.testing.assert_allclose(spread(np.array([0.1, 0.5, 0.9]), 0.08), [0.1, 0.5, 0.9])


def test_places_that_are_together_part_evenly_to_both_sides() -> None:
    np.testing.assert_allclose(spread(np.array([0.5, 0.5, 0.5]), 0.1), [0.4, 0.5, 0.6])


def panel(ends: list[tuple[float, float]]) -> tuple[Any, list[Any]]:
    """Return a log-log panel with curves to these ends, laid out, and its labels."""
    figure = Figure(figsize=(5, 4), layout="constrained")
    axis = figure.subplots()
    for x, y in ends:
        axis.plot([1.0, x], [10.0, y])
    axis.set_xscale("log")
    axis.set_yscale("log")
    label_ends(axis, [End(f"curve-{i}", "#000000", x, y) for i, (x, y) in enumerate(ends)])
    FigureCanvasAgg(figure).draw()
    return axis, list(axis.texts)


LEVEL = [(10.0 * 1.5**i, 0.2) for i in range(CROWDED)]
STEEP = [(100.0, 0.01 * 1.5**i) for i in range(CROWDED)]


@pytest.mark.parametrize(("ends", "turned"), [(LEVEL, 90), (STEEP, 0)], ids=["one height", "one place across"])
def test_every_curve_of_a_crowded_panel_has_its_name_and_none_covers_another(
    ends: list[tuple[float, float]], turned: float
) -> None:
    axis, labels = panel(ends)
    assert [label.get_text() for label in sorted(labels, key=lambda one: one.get_text())] == [
        f"curve-{i}" for i in range(CROWDED)
    ]
    boxes = [label.get_window_extent() for label in labels]
    assert all(label.get_rotation() == turned for label in labels)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    whole = axis.get_figure().bbox
    assert all(whole.x0 <= box.x0 <= box.x1 <= whole.x1 and whole.y0 <= box.y0 <= box.y1 <= whole.y1 for box in boxes)


def test_upright_names_stand_in_room_of_their_own_below_the_curves() -> None:
    axis, labels = panel(LEVEL)
    lowest = axis.transData.transform((10.0, 0.2))[1]
    bottom = axis.get_window_extent().y0
    assert all(bottom <= label.get_window_extent().y0 <= label.get_window_extent().y1 <= lowest for label in labels)


def test_few_curves_and_curves_with_one_end_have_the_legend_alone() -> None:
    assert panel(LEVEL[:-1])[1] == []
    assert panel([(100.0, 0.2)] * CROWDED)[1] == []
