"""Read tiny-imagenet's layout, a folder or a zip: wnids.txt, train/WNID/images/*.JPEG, val/ with its annotations."""

import io
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lasg.data.tables import Parts, Table
from lasg.errors import LasgError, missing_extra

WNIDS, ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"

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
        with Image.open(io.BytesIO(read(name))) as image:
            return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except (OSError, UnidentifiedImageError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise LasgError(f"{path}: {name} is not a sound image ({error}): replace it") from error


def _text(path: Path, read: Reader, names: set[str], name: str) -> str:
    if name not in names:
        raise LasgError(f"{path} is not in tiny-imagenet's layout: it has no {name}")
    try:
        return read(name).decode("utf-8", "replace")
    except (zipfile.BadZipFile, zlib.error) as error:
        raise LasgError(f"{path}: {name} is damaged ({error}): replace it") from error


@contextmanager
def _opened(path: Path) -> Iterator[tuple[set[str], Reader]]:
    """Give the files' names below the folder that holds wnids.txt, and what reads one."""
    if path.is_dir():
        root = path if (path / WNIDS).is_file() else next((p.parent for p in path.glob(f"*/{WNIDS}")), path)
        yield (
            {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()},
            lambda name: (root / name).read_bytes(),
        )
        return
    try:
        with zipfile.ZipFile(path) as archive:
            top = next((n.removesuffix(WNIDS) for n in archive.namelist() if n.split("/")[-1] == WNIDS), "")
            names = {n.removeprefix(top) for n in archive.namelist() if n.startswith(top) and not n.endswith("/")}
            yield names, lambda name: archive.read(top + name)
    except (OSError, zipfile.BadZipFile) as error:
        raise LasgError(f"{path} cannot be read as a folder or zip of images: {error}") from error


def tiny_imagenet(classes: slice) -> Callable[[Any], Parts]:
    """Return the parser of some classes of a tiny-imagenet archive."""
    return lambda paths: parse_images(paths[0], classes)
