"""`libsvm:PATH`: any LIBSVM file, and every fault in it named."""

import bz2
import gzip
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest

from lasg.data import cache
from lasg.data.loaders import load
from lasg.errors import LasgError

TEXT = b"# a comment\n3 1:0.5 3:2\n-1 2:1e-3\n\n7 qid:4 1:-1 3:4 # the end\n3 1:1\n"


def write(folder: Path, content: bytes, name: str = "my.data") -> str:
    (folder / name).write_bytes(content)
    return f"libsvm:{folder / name}"


@pytest.mark.parametrize(
    ("name", "pack"), [("a", bytes), ("a.gz", gzip.compress), ("a.bz2", bz2.compress), ("a.xz", lzma.compress)]
)
def test_plain_and_compressed_files_give_the_same(tmp_path: Path, name: str, pack: object) -> None:
    assert callable(pack)
    spec = write(tmp_path, pack(TEXT), name)
    for _ in range(2):  # parsed, then from the cache
        data = load(spec)
        expected = np.array([[0.5, 0, 2], [0, 1e-3, 0], [-1, 0, 4], [1, 0, 0]], dtype=np.float32)
        np.testing.assert_array_equal(data.features, expected)
        assert data.labels.tolist() == [1, 0, 2, 1]
        assert data.classes == 3
        assert data.test_features is None
        assert data.test_labels is None
        assert data.name == spec


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    first = load(write(tmp_path, b"0 1:1\n1 1:2\n"))
    second = load(write(tmp_path, b"0 1:1\n1 1:3\n"))
    assert (first.features[1, 0], second.features[1, 0]) == (2, 3)
    assert first.sha256 != second.sha256
    assert len(list((cache.root() / "prepared").iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "no samples"),
        (b"\n\n# nothing\n", "no samples"),
        (b"1\n2\n", "no samples with features"),
        (b"1 1:2\n1 1:3\n", "only the class 1: at least 2 classes"),
        (b"1 1:2\n2 1:nan\n", r"NaN or an infinity \(line 2\)"),
        (b"1 1:2\n2 1:-inf\n", r"NaN or an infinity \(line 2\)"),
        (b"1 1:2\nnan 1:1\n", r"NaN or an infinity \(line 2\)"),
        (b"1 1:2\n\n2 1:1e39\n", r"NaN or an infinity \(line 3\)"),
        (b"1 1:2\n2 1:x\n", r"not a sound LIBSVM file \(line 2\)"),
        (b"1 1:2\n2 1\n", r"not a sound LIBSVM file \(line 2\)"),
        (b"1 1:2\n2 a:1\n", r"not a sound LIBSVM file \(line 2\)"),
        (b"1 1:2\nspam 1:1\n", r"not a sound LIBSVM file \(line 2\)"),
        (b"1,2 1:2\n3 1:1\n", r"not a sound LIBSVM file \(line 1\)"),
        (b"1 1:2\n2 3:1 2:1\n", r"not a sound LIBSVM file \(line 2\)"),
        (b"1 1:2\n2 -4:1\n", r"not a sound LIBSVM file \(line 2\)"),
        (b"1 1:2\n2 99999999999999999999999:1\n", "not a sound LIBSVM file"),
        (b"\x00\xff\xfe binary \x80\n", "not a sound LIBSVM file"),
        (b"a,b,c\n1,2,3\n", r"not a sound LIBSVM file \(line 1\)"),
        (b"0.25 1:2\n2 1:1\n", "label 0.25: write labels as whole numbers"),
        (
            b"".join(b"%d.5 1:1\n" % i for i in range(30)),
            r"the target has 30 different values, such as 0\.5: that is a quantity, .*group the values into classes",
        ),
        (gzip.compress(TEXT, mtime=0)[:-9], "cannot be read"),
        (bz2.compress(TEXT)[:-9], "cannot be read"),
        (b"\x1f\x8bnot gzip at all", "cannot be read"),
    ],
)
def test_a_faulty_file_is_named_with_its_fault(tmp_path: Path, content: bytes, fault: str) -> None:
    with pytest.raises(LasgError, match=rf"my\.data.*{fault}") as caught:
        load(write(tmp_path, content))
    assert "\n" not in str(caught.value)
    assert not (cache.root() / "prepared").exists()


def test_a_file_too_wide_to_be_dense_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match=r"too large: 2 x 2,000,000,000 takes 14\.9 GiB dense"):
        load(write(tmp_path, b"1 1:1\n2 2000000000:1\n"))


@pytest.mark.parametrize(("path", "fault"), [("", "no file"), ("nowhere", "no file"), (".", "a folder")])
def test_a_path_that_is_no_file_is_refused(path: str, fault: str) -> None:
    with pytest.raises(LasgError, match=f"must name a LIBSVM file, but '{path}' is {fault}"):
        load(f"libsvm:{path}")


def test_without_scikit_learn_the_install_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for name in (write(tmp_path, TEXT), "digits", "breast-cancer"):
        with pytest.raises(LasgError, match=r"pip install 'lasg\[data\]'"):
            load(name)
