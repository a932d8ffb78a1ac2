"""`scale`: standardised features, with the training rows' numbers; and what unscaled or odd data get said of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lasg.data import cache, tables
from lasg.data.loaders import Dataset, load
from lasg.data.scaling import standardise
from lasg.data.sources import Reading
from lasg.data.suspicions import suspicions
from lasg.data.tables import Parts, Table
from lasg.errors import LasgError

SCALED = Reading(scale=True)


def write_csv(path: Path, rows: np.ndarray, labels: np.ndarray) -> str:
    head = ",".join([*(f"f{j}" for j in range(rows.shape[1])), "label"])
    lines = (",".join([*(f"{x:.6g}" for x in row), str(y)]) for row, y in zip(rows, labels, strict=True))
    path.write_text("\n".join([head, *lines]) + "\n")
    return f"csv:{path}"


@pytest.fixture
def rows() -> np.ndarray:
    """A wide column, a mostly zero one, a constant one, one of zeros, and one with a large offset."""
    rng = np.random.default_rng(0)
    sparse = np.where(rng.random(300) < 0.1, 40.0, 0.0)
    columns = (900 * rng.normal(size=300), sparse, np.zeros(300), 2000 + rng.random(300))
    return np.column_stack(columns)


def labels(count: int) -> np.ndarray:
    return np.arange(count) % 2


def test_columns_are_standardised_zeros_stay_and_an_intercept_is_added(tmp_path: Path, rows: np.ndarray) -> None:
    data = load(write_csv(tmp_path / "my.csv", rows, labels(300)), reading=SCALED)
    wide, sparse, zeros, offset, ones = data.features.astype(np.float64).T
    for column in (wide, offset):
        assert column.mean() == pytest.approx(0, abs=1e-5)
        assert column.std() == pytest.approx(1, rel=1e-5)
    np.testing.assert_array_equal(sparse, rows[:, 1] / 40)
    assert not zeros.any()
    assert (ones == 1).all()
    assert data.shape == (5,)


def test_a_constant_column_is_the_intercept_and_no_other_is_added(tmp_path: Path, rows: np.ndarray) -> None:
    rows[:, 2] = 7
    data = load(write_csv(tmp_path / "my.csv", rows, labels(300)), reading=SCALED)
    assert data.features.shape == (300, 4)
    assert (data.features[:, 2] == 1).all()


def test_test_rows_are_scaled_by_the_numbers_of_the_training_rows() -> None:
    train = Table(np.array([[0.0], [2.0], [4.0]]), labels(3), lambda block: np.asarray(block, np.float32))
    test = replace(train, raw=np.array([[8.0]]), labels=labels(1))
    scaled = standardise(Parts(train, test, 2))
    assert scaled.test is not None
    (block,) = scaled.test.blocks()
    assert block[0].tolist() == pytest.approx([(8 - 2) / np.sqrt(8 / 3), 1.0], rel=1e-5)


def test_a_sparse_file_is_scaled_block_by_block_as_a_dense_one(
    tmp_path: Path, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(write_csv(tmp_path / "my.csv", rows, labels(300)), reading=SCALED)
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 4 * 5 * 7)
    lines = (
        f"{y} " + " ".join(f"{j}:{x:.6g}" for j, x in enumerate(row, 1) if x)
        for row, y in zip(rows, labels(300), strict=True)
    )
    (tmp_path / "my.svm").write_text("\n".join(lines) + "\n")
    np.testing.assert_array_equal(load(f"libsvm:{tmp_path / 'my.svm'}", reading=SCALED).features, whole.features)


def test_scaled_and_unscaled_data_are_two_in_the_cache(tmp_path: Path, rows: np.ndarray) -> None:
    name = write_csv(tmp_path / "my.csv", rows, labels(300))
    plain, scaled, again = load(name), load(name, reading=SCALED), load(name)
    assert plain.sha256 == again.sha256 != scaled.sha256
    assert plain.features.max() > 1000
    assert len(list((cache.root() / "prepared").iterdir())) == 2


@pytest.mark.parametrize("reading", [SCALED, Reading(label_column="a")], ids=["scale", "label_column"])
def test_named_data_have_no_use_for_it(reading: Reading) -> None:
    with pytest.raises(LasgError, match="leave it out"):
        load("digits", reading=reading)


# -- what looks as if it were not meant ------------------------------------------------------------------------


def test_unscaled_features_are_told_with_the_widest_and_what_to_do(tmp_path: Path, rows: np.ndarray) -> None:
    name = write_csv(tmp_path / "my.csv", rows, labels(300))
    (line,) = suspicions(load(name))
    assert "my.csv: 3 of 4 features are not scaled (column 'f3' runs from 2000" in line
    assert line.endswith("--scale standardises them")
    assert not suspicions(load(name, reading=SCALED), SCALED)


def test_features_that_are_scaled_get_no_word(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    assert not suspicions(load(write_csv(tmp_path / "my.csv", rng.standard_t(3, size=(200, 3)), labels(200))))
    assert not suspicions(load("digits"))


@pytest.mark.parametrize(("classes", "samples", "told"), [(214, 442, True), (10, 30, False), (30, 3000, False)])
def test_many_classes_with_few_samples_each_are_told(tmp_path: Path, classes: int, samples: int, told: bool) -> None:
    data: Dataset = load(write_csv(tmp_path / "my.csv", np.ones((samples, 1)), np.arange(samples) % classes))
    assert data.classes == classes
    found = suspicions(data)
    assert bool(found) == told
    assert not told or f"{classes} classes in {samples} samples look like a quantity" in found[0]
