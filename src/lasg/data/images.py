"""Read tiny-imagenet's layout, a folder or a zip: wnids.txt, train/WNID/images/*.JPEG, val/ with its annotations."""

import io
import lzma
import struct
import warnings
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lasg.data.raw_files import reason
from lasg.data.tables import Parts, Table, check_size
from lasg.errors import LasgError, missing_extra

MOST_PIXELS = 1 << 24
"""Of an image; those of a data set are small."""
MOST_BYTES = 64 << 20
"""Of a file in a data set of images, decompressed: what says more of itself is no image, but a bomb."""
WNIDS, ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"

UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, NotImplementedError, MemoryError, struct.error),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""What reading a zip raises that is damaged, encrypted, or made by another method."""
Reader = Callable[[str], bytes]


def parse_images(path: Path, classes: slice = slice(None)) -> Parts:
    """Read the classes of wnids.txt that `classes` chooses, numbered from 0; val is the test set."""
    with _opened(path) as (names, read):
        listed = _text(path, read, names, WNIDS).split()[classes]
        if len(listed) < 2:
            raise LasgError(f"{path} has {len(listed)} classes in {WNIDS}: at least 2 are needed to train on")
        by_class = defaultdict(list)
        for name in sorted(names):
            parts = name.split("/")
            if len(parts) == 4 and (parts[0], parts[2]) == ("train", "images"):
                by_class[parts[1]].append(name)
        empty = [wnid for wnid in listed if not by_class[wnid]]
        if empty:
            raise LasgError(f"{path} has no images of the class {empty[0]} in train/{empty[0]}/images: complete it")
        train = [(name, label) for label, wnid in enumerate(listed) for name in by_class[wnid]]
        number = {wnid: label for label, wnid in enumerate(listed)}
        lines = [line.split("\t") for line in _text(path, read, names, ANNOTATIONS).splitlines() if line.strip()]
        if any(len(line) < 2 for line in lines):
            raise LasgError(f"{path}: {ANNOTATIONS} must have lines of file name, tab, class: correct it")
        test = [(f"val/images/{line[0]}", number[line[1]]) for line in lines if line[1] in number]
        shape = _decode(path, train[0][0], read).shape
        if shape[1] != shape[2]:
            raise LasgError(f"{path}: images must be square, {train[0][0]} is {shape[2]} x {shape[1]}: crop them")
        tables = [_table(path, chosen, read, names, shape) if chosen else None for chosen in (train, test)]
    assert tables[0] is not None  # every class has an image
    return Parts(tables[0], tables[1], len(listed))


def image_shape(columns: int) -> tuple[int, int, int]:
    """Return the shape of a square colour image of so many numbers."""
    side = round((columns / 3) ** 0.5)
    return (3, side, side)


def _table(path: Path, chosen: list[tuple[str, int]], read: Reader, names: set[str], shape: tuple[int, ...]) -> Table:
    check_size(path, len(chosen), -(-int(np.prod(shape)) // 4))  # bytes, not float32
    pixels = np.empty((len(chosen), int(np.prod(shape))), np.uint8)
    for row, (name, _) in zip(pixels, chosen, strict=True):
        if name not in names:
            raise LasgError(f"{path} names {name}, which is not in it: complete it")
        image = _decode(path, name, read)
        if image.shape != shape:
            raise LasgError(f"{path}: {name} is {image.shape[1:]}, the first image {shape[1:]}: make them one size")
        row[:] = image.ravel()
    return Table(pixels, np.array([label for _, label in chosen], np.int64), lambda block: block, "|u1")


def _decode(path: Path, name: str, read: Reader) -> NDArray[np.uint8]:
    """Return an image as (3, height, width); greyscale ones become three equal channels."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise missing_extra("pillow", "data") from error
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(read(name))) as image:
            warnings.simplefilter("ignore")  # of what Pillow warns of, or fails with, all comes below
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {MOST_PIXELS:,}")
            return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except (*UNREADABLE, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError) as error:
        raise LasgError(f"{path}: {name} is not a sound image ({reason(error)}): replace it") from error


def _text(path: Path, read: Reader, names: set[str], name: str) -> str:
    if name not in names:
        raise LasgError(f"{path} is not in tiny-imagenet's layout: it has no {name}")
    try:
        return read(name).decode("utf-8", "replace")
    except UNREADABLE as error:
        raise LasgError(f"{path}: {name} is damaged ({reason(error)}): replace it") from error


@contextmanager
def _opened(path: Path) -> Iterator[tuple[set[str], Reader]]:
    """Give the files' names below the folder that holds wnids.txt, and what reads one."""
    if path.is_dir():
        root = path if (path / WNIDS).is_file() else next((p.parent for p in path.glob(f"*/{WNIDS}")), path)
        yield (
            {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()},
            lambda name: _limited((root / name).open("rb"), (root / name).stat().st_size),
        )
        return
    try:
        with zipfile.ZipFile(path) as archive:
            top = next((n.removesuffix(WNIDS) for n in archive.namelist() if n.split("/")[-1] == WNIDS), "")
            names = {n.removeprefix(top) for n in archive.namelist() if n.startswith(top) and not n.endswith("/")}
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            yield names, lambda name: _limited(archive.open(top + name), sizes[top + name])
    except UNREADABLE as error:
        if isinstance(error, LasgError):
            raise
        raise LasgError(f"{path} cannot be read as a folder or zip of images: {reason(error)}") from error


def _limited(stream: IO[bytes], size: int) -> bytes:
    """Read a file that is not larger than images are, whatever it says of its size."""
    with stream:
        content = b"" if size > MOST_BYTES else stream.read(MOST_BYTES + 1)
    if size > MOST_BYTES or len(content) > MOST_BYTES:
        raise ValueError(f"it has {max(size, len(content)):,} bytes, more than {MOST_BYTES:,}")
    return content


def tiny_imagenet(classes: slice) -> Callable[[Any], Parts]:
    """Return the parser of some classes of a tiny-imagenet archive."""
    return lambda paths: parse_images(paths[0], classes)
