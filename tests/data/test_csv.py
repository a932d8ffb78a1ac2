"""`csv:PATH`: a header, numbers and a column of classes; every fault is named with its line and column."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lasg.data import cache
from lasg.data.loaders import load
from lasg.data.sources import Reading
from lasg.errors import LasgError

TEXT = b"age,label,height\n1,yes,0.5\n2,no,-3\n\n4,yes,1e-3\n"


def write(folder: Path, content: bytes, name: str = "my.csv") -> str:
    (folder / name).write_bytes(content)
    return f"csv:{folder / name}"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_features_are_the_other_columns_and_words_are_classes_in_sorted_order(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    for _ in range(2):  # parsed, then from the cache
        data = load(write(tmp_path, pack(TEXT)))
        np.testing.assert_array_equal(data.features, np.array([[1, 0.5], [2, -3], [4, 1e-3]], np.float32))
        assert data.labels.tolist() == [1, 0, 1]
        assert (data.classes, data.test_features, data.shape) == (2, None, (2,))


@pytest.mark.parametrize(
    "text",
    [
        "a;label\n0.5;10\n1;9\n",
        "a\tlabel\n0.5\t10\n1\t9\n",
        "\ufeffa,Label\r\n0.5,10\r\n1,9\r\n",
        '"a", "y"\n0.5 , "10"\n 1 , 9.0',
        "target,a\n10.0,0.5\n9,1\n",
    ],
    ids=["semicolons", "tabs", "as Excel writes it", "quotes and spaces", "the target first"],
)
def test_the_usual_ways_of_writing_are_read_and_number_labels_are_in_the_order_of_numbers(
    tmp_path: Path, text: str
) -> None:
    data = load(write(tmp_path, text.encode()))
    assert data.features.tolist() == [[0.5], [1]]
    assert data.labels.tolist() == [1, 0]


def test_another_column_can_hold_the_classes_and_is_another_data_set(tmp_path: Path) -> None:
    name = write(tmp_path, b"a,y,b\n1,0,7\n2,1,7\n3,1,8\n")
    usual, other = load(name), load(name, reading=Reading(label_column="b"))
    assert usual.features.tolist() == [[1, 7], [2, 7], [3, 8]]
    assert (other.features.tolist(), other.labels.tolist()) == ([[1, 0], [2, 1], [3, 1]], [0, 0, 1])
    assert usual.sha256 != other.sha256
    assert len(list((cache.root() / "prepared").iterdir())) == 2
    assert load(name).features.tolist() == usual.features.tolist()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is empty: line 1 must name the columns"),
        (b"\n\n", "is empty"),
        (b"a,label\n", "has no samples"),
        (b"1,2,3\n4,5,6\n", "has no header: line 1 must name the columns, but it holds numbers"),
        (b"a,,label\n1,2,3\n", "no name for column 2"),
        (b"a,a,label\n1,2,3\n", "two columns called 'a'"),
        (b"label\n1\n2\n", "'label' alone"),
        (
            b"a,b\n1,2\n",
            "called target or label or y, but none of its columns is called so.*label_column=NAME.*columns: a, b",
        ),
        (b"a,y,label\n1,2,3\n", "2 of its columns are called so"),
        (b"a,label\n1,x\n2\n", r"line 3: expected 2 cells as in line 1, got 1"),
        (b"a,label\n1,x\n2,y,z\n", r"line 3: expected 2 cells as in line 1, got 3"),
        (b"a,label\n1,x\n\n,y\n", r"line 4, column 'a' is empty: fill it in"),
        (b"a,label\n1,x\n2, \n", r"line 3, column 'label' is empty"),
        (b"a,city,label\n1,2,x\n2,Berlin,y\n", r"line 3, column 'city' holds 'Berlin', not a number"),
        (b"a,label\n1,x\nnan,y\n", r"line 3, column 'a' holds nan: a finite number"),
        (b"a,label\n1,x\n1e39,y\n", r"line 3, column 'a' holds 1e39: a finite number within float32"),
        (b"a,label\n1,0\n2,nan\n", "column 'label' holds a NaN or an infinity"),
        (b"a,label\n1,x\n2,x\n", "only the class x: at least 2 classes"),
        (b"a,label\n1,3\n2,3.0\n", "only the class 3: at least 2 classes"),
        (b"a,label\n1,0.5\n2,1\n", r"column 'label' has the label 0\.5"),
        (
            b"a,price\n" + b"".join(b"%d,%d.25\n" % (i, i) for i in range(30)),
            "none of its columns is called so",
        ),
        (
            b"a,y\n" + b"".join(b"%d,%d.25\n" % (i, i) for i in range(30)),
            r"column 'y' has 30 different values, such as 0\.25: that is a quantity",
        ),
        (b"a,label\n1,\xff\xfe\n", "not UTF-8"),
        (b'a,label\n1,"x\n2,y\n', "not a sound CSV file"),
        (gzip.compress(TEXT, mtime=0)[:-9], "cannot be read"),
    ],
)
def test_a_faulty_file_is_named_with_its_fault(tmp_path: Path, content: bytes, fault: str) -> None:
    with pytest.raises(LasgError, match=rf"my\.csv.*{fault}") as caught:
        load(write(tmp_path, content))
    assert "\n" not in str(caught.value)
    assert not (cache.root() / "prepared").exists()


def test_a_label_column_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    name = write(tmp_path, b"height,kind\n1,a\n2,b\n")
    with pytest.raises(LasgError, match=r"no column 'kidn'\. Did you mean kind\? Its columns: height, kind"):
        load(name, reading=Reading(label_column="kidn"))


def test_it_is_read_without_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    assert load(write(tmp_path, TEXT), reading=Reading(scale=True)).classes == 2
