"""tiny-imagenet's layout, as a folder and as a zip."""

import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lasg.data import raw_files, weights
from lasg.data.images import parse_images
from lasg.data.loaders import load
from lasg.data.sources import FILES, Source
from lasg.errors import LasgError

WNIDS = ("n03", "n01", "n02")


def picture(number: int, grey: bool = False, side: int = 8) -> bytes:
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (side, side) if grey else (side, side, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def layout(change: Callable[[dict[str, bytes]], object] | None = None) -> dict[str, bytes]:
    """Three classes, four training images each, of which the third is grey; six images in val."""
    content = {"wnids.txt": "\n".join(WNIDS).encode(), "words.txt": b"n01\tcat\n"}
    for c, wnid in enumerate(WNIDS):
        for i in range(4):
            content[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = picture(10 * c + i, grey=i == 2)
        content[f"train/{wnid}/{wnid}_boxes.txt"] = b""
    lines = [f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t9\t9" for i in range(6)]
    content |= {f"val/images/val_{i}.JPEG": picture(100 + i) for i in range(6)}
    content["val/val_annotations.txt"] = "\n".join(lines).encode()
    if change is not None:
        change(content)
    return content


def as_zip(path: Path, content: dict[str, bytes], top: str = "tiny/") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(top + name, data)
    return path


def as_folder(path: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def test_a_folder_and_a_zip_give_the_same_arrays(tmp_path: Path) -> None:
    zipped = load(f"images:{as_zip(tmp_path / 'tiny.zip', layout())}")
    folder = load(f"images:{as_folder(tmp_path / 'tiny', layout())}")
    assert zipped.sha256 == folder.sha256
    assert zipped.shape == folder.shape == (3, 8, 8)
    assert zipped.features.dtype == np.uint8
    assert zipped.features.shape == (12, 192)
    assert zipped.classes == 3


def test_a_folder_that_holds_the_layouts_folder_will_do(tmp_path: Path) -> None:
    as_folder(tmp_path / "outer" / "tiny-imagenet-200", layout())
    assert len(load(f"images:{tmp_path / 'outer'}").labels) == 12


def test_classes_are_numbered_as_in_wnids_and_val_is_the_test_set(tmp_path: Path) -> None:
    found = load(f"images:{as_zip(tmp_path / 'tiny.zip', layout())}")
    assert found.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.test_labels is not None
    assert found.test_labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.test_features is not None
    expected = np.asarray(Image.open(io.BytesIO(picture(101)))).transpose(2, 0, 1)
    np.testing.assert_array_equal(found.test_features[1].reshape(3, 8, 8), expected)


def test_grey_images_become_three_equal_channels(tmp_path: Path) -> None:
    found = load(f"images:{as_zip(tmp_path / 'tiny.zip', layout())}")
    grey = found.features[2].reshape(3, 8, 8)
    np.testing.assert_array_equal(grey[0], grey[1])
    np.testing.assert_array_equal(grey[0], grey[2])
    coloured = found.features[1].reshape(3, 8, 8)
    assert (coloured[0] != coloured[1]).any()


def test_some_classes_are_numbered_from_0(tmp_path: Path) -> None:
    parts = parse_images(as_zip(tmp_path / "tiny.zip", layout()), slice(1, 3))
    assert parts.classes == 2
    assert parts.train.labels.tolist() == [0] * 4 + [1] * 4
    assert parts.test is not None
    assert parts.test.labels.tolist() == [0, 1, 0, 1]


def test_a_folder_that_changed_is_prepared_anew(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "tiny", layout())
    before = load(f"images:{folder}")
    (folder / "train/n01/images/n01_9.JPEG").write_bytes(picture(99))
    assert len(load(f"images:{folder}").labels) == len(before.labels) + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("wnids.txt"), "it has no wnids.txt"),
        (lambda c: c.pop("val/val_annotations.txt"), "it has no val/val_annotations.txt"),
        (lambda c: c.pop("val/images/val_3.JPEG"), "names val/images/val_3.JPEG, which is not in it"),
        (lambda c: c.update({"wnids.txt": b"n01"}), "has 1 classes"),
        (lambda c: c.update({"wnids.txt": b"n01\nn09"}), "no images of the class n09"),
        (lambda c: c.update({"train/n01/images/n01_1.JPEG": b"no"}), "n01_1.JPEG is not a sound image"),
        (lambda c: c.update({"train/n01/images/n01_1.JPEG": picture(1, side=9)}), "make them one size"),
        (lambda c: c.update({"val/val_annotations.txt": b"val_0.JPEG"}), "lines of file name, tab, class"),
    ],
)
@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_what_is_not_in_the_layout_is_refused_with_its_place(
    tmp_path: Path, kind: str, change: Callable[[dict[str, bytes]], object], words: str
) -> None:
    content = layout(change)
    path = as_zip(tmp_path / "t.zip", content) if kind == "zip" else as_folder(tmp_path / "t", content)
    with pytest.raises(LasgError, match=words) as error:
        parse_images(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    path.write_bytes(b"no zip")
    with pytest.raises(LasgError, match="cannot be read as a folder or zip"):
        parse_images(path)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="must name a folder or zip in tiny-imagenet's layout"):
        load(f"images:{tmp_path / 'nowhere'}")


def test_images_that_are_not_square_are_refused_even_if_they_have_a_squares_area(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 16, 3), np.uint8)).save(buffer, "JPEG")
    content = {name: buffer.getvalue() if name.endswith("JPEG") else data for name, data in layout().items()}
    with pytest.raises(LasgError, match=r"must be square, .* is 16 x 4"):
        parse_images(as_zip(tmp_path / "t.zip", content))


def test_a_damaged_zip_member_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in layout().items():
            archive.writestr(name, data)
    content = bytearray(path.read_bytes())
    start = content.index(b"n01_1.JPEG") + 60
    content[start : start + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(LasgError, match=r"n01_1\.JPEG is not a sound image"):
        parse_images(path)


def test_the_small_archive_gives_way_to_the_official_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes are the first of the official archive, so that one serves as well."""
    path = as_zip(tmp_path / "tiny-imagenet-200.zip", layout())
    monkeypatch.setitem(
        FILES, path.name, Source(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size, ())
    )
    assert load("tiny-imagenet-20", data_dir=tmp_path).classes == 3


def test_the_real_classes_are_those_of_the_archive(real_data: Path) -> None:
    first, last = (load(f"tiny-imagenet-10{part}", data_dir=real_data) for part in "ab")
    for found in (first, last):
        assert found.features.shape == (5000, 3 * 64 * 64)
        assert np.bincount(found.labels).tolist() == [500] * 10
        assert found.test_labels is not None
        assert np.bincount(found.test_labels).tolist() == [50] * 10
    assert first.sha256 != last.sha256


# -- weight files ----------------------------------------------------------------------------------------------------


def test_weights_are_found_by_path_beside_the_data_and_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(b"x")
    assert weights.obtain(str(path), None) == path
    assert weights.obtain("mine", tmp_path) == path
    monkeypatch.setenv("LASG_DATA", str(tmp_path))
    assert weights.obtain("mine", None) == path
    monkeypatch.delenv("LASG_DATA")
    made = weights.made_folder() / "mine.safetensors"
    made.parent.mkdir(parents=True)
    made.write_bytes(b"y")
    assert weights.obtain("mine", None) == made


def test_official_weights_are_verified(tmp_path: Path) -> None:
    (tmp_path / "resnet18-f37072fd.pth").write_bytes(b"not these")
    with pytest.raises(LasgError, match="expected sha256 f37072fd47e8"):
        weights.obtain("resnet18-imagenet", tmp_path)


def test_official_weights_are_downloaded_from_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def receive(url: str, source: Source, path: Path, progress: object) -> None:
        asked.append((url, source.sha256))
        path.write_bytes(b"weights")

    monkeypatch.setattr("lasg.data.download._receive", receive)
    path = weights.obtain("resnet18-imagenet", tmp_path)
    assert path.read_bytes() == b"weights"
    assert asked == [
        (
            "https://download.pytorch.org/models/resnet18-f37072fd.pth",
            "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
        )
    ]


@pytest.mark.parametrize("name", ["nothing", "nothing.safetensors", "folder/nothing"])
def test_weights_that_are_not_here_are_an_error_with_what_to_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(LasgError, match="lasg pretrain makes others"):
        weights.obtain(name, tmp_path)


def test_the_digest_of_a_folder_changes_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    before = raw_files.hash_tree(tmp_path)
    (tmp_path / "b").write_bytes(b"1")
    assert raw_files.hash_tree(tmp_path) != before
