"""Data files that lie, or are meant to harm, are refused in one line, soon, and with little memory."""

from __future__ import annotations

import io
import random
import struct
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lasg.core.clipping import Clipped
from lasg.data.images import parse_images
from lasg.data.parsers import parse_idx, parse_libsvm
from lasg.errors import LasgError

SECONDS, BYTES = 1.0, 128 << 20
"""Of processor time, and of memory beyond what the process has: what a refusal may take."""
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak() -> int:
    """Return the most memory that this process has had, in bytes, since it was last reset."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


@contextmanager
def one_line(*words: str) -> Iterator[None]:
    """Look that something is refused in one line that has these words in it, within a second and with little memory."""
    measured = RESET.exists()
    if measured:
        RESET.write_text("5")
    before, began = peak() if measured else 0, time.process_time()
    with pytest.raises(LasgError) as error:
        yield
    assert time.process_time() - began < SECONDS
    assert not measured or peak() - before < BYTES
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), error.value


def late(seconds: float, size: int) -> None:
    """Refuse something after so much time, with so much memory."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    assert np.ones(size, np.uint8).all()
    raise LasgError("late")


def test_what_takes_much_memory_or_time_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hostile.test_data.SECONDS", 0.3)
    with pytest.raises(AssertionError), one_line():
        late(0.3, 1)
    if RESET.exists():
        with pytest.raises(AssertionError), one_line():
            late(0.0, 2 * BYTES)


# -- images -----------------------------------------------------------------------------------------------------------


def picture(width: int = 4, height: int = 4) -> bytes:
    pillow = pytest.importorskip("PIL.Image", reason="needs pillow")
    content = io.BytesIO()
    pillow.new("1", (width, height)).save(content, "PNG")
    return content.getvalue()


def archive(path: Path, **changes: bytes) -> Path:
    """Write a zip in tiny-imagenet's layout, with some files as they are given."""
    files = {"wnids.txt": b"a\nb\n", "val/val_annotations.txt": b"v.png\ta\n", "val/images/v.png": picture()}
    files |= {f"train/{name}/images/{name}.png": picture() for name in "ab"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as found:
        for name, content in {**files, **changes}.items():
            found.writestr(name, content)
    return path


def patched(path: Path, name: str, offset: int, values: bytes) -> Path:
    """Change fields of a file's entry in the zip: offsets are those of the local header; the directory's are 2 more."""
    content = bytearray(path.read_bytes())
    for head, shift, at in ((b"PK\3\4", 0, 30), (b"PK\1\2", 2, 46)):
        start = -1
        while (start := content.find(head, start + 1)) >= 0:
            if content[start + at : start + at + len(name)] == name.encode():
                content[start + offset + shift : start + offset + shift + len(values)] = values
    path.write_bytes(content)
    return path


def test_a_sound_archive_is_read(tmp_path: Path) -> None:
    assert parse_images(archive(tmp_path / "a.zip")).classes == 2


@pytest.mark.parametrize("name", ["wnids.txt", "train/a/images/a.png", "val/val_annotations.txt"])
def test_zips_that_are_encrypted_or_of_an_unknown_method_are_refused(name: str, tmp_path: Path) -> None:
    with one_line("a.zip", name.rpartition("/")[2], "encrypted"):
        parse_images(patched(archive(tmp_path / "a.zip"), name, 6, b"\1\0"))
    with one_line("a.zip", name.rpartition("/")[2], "method"):
        parse_images(patched(archive(tmp_path / "a.zip"), name, 8, struct.pack("<H", 93)))


@pytest.mark.parametrize("name", ["wnids.txt", "train/a/images/a.png"])
def test_a_bomb_of_zeros_is_refused(name: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", **{name: bytes(200 << 20)})
    assert path.stat().st_size < 1 << 20
    with one_line("a.zip", name, "more than"):
        parse_images(path)
    with one_line("a.zip", name):  # it says that it is short
        parse_images(patched(path, name, 22, struct.pack("<L", 100)))


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", **{"train/a/images/a.png": picture(9000, 9000)})
    with one_line("a.png", "9000 x 9000 pixels"):
        parse_images(path)


def test_damaged_archives_are_refused_in_one_line_or_read(tmp_path: Path) -> None:
    good, chance = archive(tmp_path / "a.zip").read_bytes(), random.Random(0)
    for _ in range(400):
        content = bytearray(good)
        for _ in range(chance.choice([1, 1, 4])):
            content[chance.randrange(len(content))] = chance.randrange(256)
        (tmp_path / "b.zip").write_bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
        try:
            parse_images(tmp_path / "b.zip")
        except LasgError as error:
            assert "\n" not in str(error)  # noqa: PT017
            assert "b.zip" in str(error)  # noqa: PT017


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_idx_heads_that_lie_are_refused(tmp_path: Path) -> None:
    path, chance = tmp_path / "images.idx", random.Random(0)
    good = b"\0\0\x08\x03" + struct.pack(">3L", 5, 4, 4) + bytes(80)
    path.write_bytes(good)
    assert parse_idx(path).shape == (5, 4, 4)
    for i in range(300):
        content = bytearray(good)
        content[chance.randrange(16)] ^= chance.randrange(1, 256)
        path.write_bytes(content if i % 3 else good[: chance.randrange(len(good))])
        with one_line("images.idx"):
            parse_idx(path)


@pytest.mark.parametrize("index", [1 << 25, 1 << 30, (1 << 31) - 1, 1 << 32, 1 << 62])
def test_a_libsvm_index_beyond_reason_is_refused(index: int, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="it reads the format")
    path = tmp_path / "mine.svm"
    path.write_text(f"1 1:1\n0 {index}:2\n")
    with one_line("mine.svm"):
        parse_libsvm(path)


def test_a_gradient_of_zero_is_clipped_to_next_to_nothing_without_a_warning() -> None:
    class Oracle:
        weights = np.array([0.5, 0.5])

        def gradients(self, *_: Any) -> list[Any]:
            return [np.array([[0.0, 0.0], [3.0, 4.0]])]

    found: Any = Clipped(Oracle(), 1e-30).gradients(0, [], None)[0]
    np.testing.assert_allclose(np.asarray(found, np.float64), np.array([[0, 0], [3e-31, 4e-31]]), rtol=1e-12)


def test_keys_of_nodes_that_are_called_server_or_ca_or_alike_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
    from lasg.flower.keys import create

    for nodes in (["server"], ["a", "b", "a"]):
        with pytest.raises(LasgError, match="two keys would be"):
            create(tmp_path / "keys", ["localhost"], nodes)
        assert not (tmp_path / "keys").exists()
    assert len(create(tmp_path / "keys", ["localhost"], ["ca", "a"])) == 7
