"""The named data sets are what they say they are."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lasg.data.loaders import Dataset, load
from lasg.data.sources import DATASETS, FILES
from lasg.errors import LasgError

from .conftest import Small


def counts(labels: np.ndarray) -> list[int]:
    return [int(n) for n in np.bincount(labels)]


def assert_sound(data: Dataset) -> None:
    assert data.features.dtype == np.float32
    assert data.labels.dtype == np.int64
    assert data.features.shape[0] == data.labels.shape[0]
    assert set(np.unique(data.labels)) == set(range(data.classes))
    assert np.isfinite(data.features).all()
    assert len(data.sha256) == 64
    if data.test_features is not None:
        assert data.test_labels is not None
        assert data.test_features.shape == (len(data.test_labels), data.features.shape[1])
        assert data.test_labels.max() < data.classes


def test_digits_are_1500_with_a_fixed_test_of_297() -> None:
    data = load("digits")
    assert_sound(data)
    assert data.features.shape == (1500, 64)
    assert (data.features.min(), data.features.max()) == (0, 1)
    assert data.test_labels is not None
    assert len(data.test_labels) == 297
    assert data.classes == 10
    assert load("digits").sha256 == data.sha256


def test_breast_cancer_holds_out_every_fifth_row_and_scales_on_the_others() -> None:
    data = load("breast-cancer")
    assert_sound(data)
    assert data.features.shape == (456, 30)
    assert data.test_labels is not None
    assert counts(data.labels) == [170, 286]
    assert counts(data.test_labels) == [42, 71]
    np.testing.assert_array_equal(data.features.min(axis=0), 0)
    np.testing.assert_array_equal(data.features.max(axis=0), 1)


def test_ijcnn1_t_is_the_papers_first_90000_rows(real_data: Path) -> None:
    data = load("ijcnn1.t", data_dir=real_data)
    assert_sound(data)
    assert data.features.shape == (90_000, 22)
    assert counts(data.labels) == [81_288, 8_712]
    assert data.test_labels is not None
    assert counts(data.test_labels) == [45_137, 4_853]
    first = {6: 1, 10: -0.659091, 11: 0.169525, 13: 0.000292}
    for column, value in first.items():
        assert data.features[0, column] == np.float32(value)
    assert data.sha256.startswith("a86bd87abc7b")


def test_ijcnn1_is_tested_on_ijcnn1_t(real_data: Path) -> None:
    data = load("ijcnn1", data_dir=real_data)
    assert_sound(data)
    assert counts(data.labels) == [45_137, 4_853]
    assert data.features.shape == (49_990, 22)
    assert data.test_labels is not None
    assert counts(data.test_labels) == [82_989, 8_712]
    assert data.sha256.startswith("3b23a135a75c")


def test_mnist_and_its_threes_and_fives(real_data: Path) -> None:
    data, pair = load("mnist", data_dir=real_data), load("mnist-3-5", data_dir=real_data)
    for each in (data, pair):
        assert_sound(each)
        assert (each.features.min(), each.features.max()) == (0, 1)
    assert data.features.shape == (60_000, 784)
    assert counts(data.labels) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_labels is not None
    assert len(data.test_labels) == 10_000
    assert pair.features.shape == (11_552, 784)
    assert counts(pair.labels) == [5421, 6131]
    assert pair.test_labels is not None
    assert counts(pair.test_labels) == [892, 1010]
    threes = data.features[data.labels == 3]
    np.testing.assert_array_equal(threes, pair.features[pair.labels == 1])
    assert (data.sha256[:12], pair.sha256[:12]) == ("af97a26fce34", "a45d5afe0f24")


def test_covtype_is_parsed_with_little_memory_and_then_opens_at_once(real_data: Path) -> None:
    # VmHWM and not getrusage, which after a fork may show the parent's peak
    program = (
        "import sys; from pathlib import Path; from lasg.data.loaders import load;"
        " load('covtype', data_dir=Path(sys.argv[1]));"
        " print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(real_data)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1_000_000, "kilobytes; the promise is under 1.0 GB"
    start = time.perf_counter()
    data = load("covtype")
    assert time.perf_counter() - start < 0.5
    assert_sound(data)
    assert data.features.shape == (581_012, 54)
    assert counts(data.labels) == [297_711, 283_301]
    np.testing.assert_array_equal(data.features.min(axis=0), 0)
    np.testing.assert_array_equal(data.features.max(axis=0), 1)
    assert data.test_features is None
    assert data.sha256.startswith("c005d9177cc7")


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(LasgError, match=r"unknown data set 'MNIST35': did you mean 'mnist-3-5'\?") as caught:
        load("MNIST35")
    for name in [*DATASETS, "libsvm:PATH"]:
        assert name in str(caught.value)
    with pytest.raises(LasgError, match="unknown data set 'zzz': The names are"):
        load("zzz")


def test_every_data_set_is_made_of_known_files() -> None:
    for entry in DATASETS.values():
        assert set(entry.files) <= set(FILES)


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_folder_that_does_not_exist_is_an_error_not_a_download(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "nowhere"
    if how == "variable":
        monkeypatch.setenv("LASG_DATA", str(nowhere))
    with pytest.raises(LasgError, match=f"must name a folder that exists, got {nowhere}"):
        load("covtype", data_dir=nowhere if how == "argument" else None)


def test_the_argument_is_searched_before_the_variable_and_the_cache(
    small: Small, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lasg.data import raw_files

    monkeypatch.setenv("LASG_DATA", str(tmp_path / "b"))
    places = [small.put(tmp_path / "a"), small.put(tmp_path / "b"), small.put(cache_dir / "raw")]
    for place in places:
        found = raw_files.find(FILES["covtype.data.gz"], tmp_path / "a")
        assert found == raw_files.Found(place, in_cache=place == places[-1])
        place.unlink()


def test_a_decompressed_file_is_found_too(small: Small, tmp_path: Path) -> None:
    (tmp_path / "covtype.data").write_bytes(small.content)
    assert len(load("covtype", data_dir=tmp_path).labels) == 40
