"""Read the file formats: LIBSVM, IDX (MNIST), covtype's integers; make the embedded sets."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lasg.data import text
from lasg.data.images import tiny_imagenet
from lasg.data.raw_files import BLOCK, BROKEN_STREAM, open_plain, reason
from lasg.data.tables import Parts, Table, check_size, classes_of
from lasg.errors import LasgError, missing_extra

MAX_IDX_BYTES = 1 << 30
"""Of an IDX file: MNIST has 47 million."""


def parse_libsvm(path: Path) -> Parts:
    """Read a LIBSVM file; its distinct labels become 0..C-1 in sorted order. Every fault names the file."""
    try:
        with open_plain(path) as stream:
            matrix, targets = _load_svmlight(path, stream)
    except BROKEN_STREAM as error:
        raise LasgError(f"{path} cannot be read: {reason(error)}; replace the file") from error
    if matrix.nnz == 0:
        raise LasgError(f"{path} has no samples with features: expected LIBSVM lines such as '1 1:0.5 3:2'")
    with np.errstate(over="ignore"):
        matrix = matrix.astype(np.float32)
    if not (np.isfinite(matrix.data).all() and np.isfinite(targets).all()):
        raise LasgError(f"{path} holds a NaN or an infinity{_bad_line(path)}: remove or replace such values")
    check_size(path, *matrix.shape)
    classes, labels = classes_of(targets, path, "the target")
    return Parts(Table(matrix, labels, _densify), None, classes)


def parse_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, MNIST's format."""
    try:
        with open_plain(path) as stream:
            head = stream.read(4)
            if len(head) < 4 or head[:3] != b"\0\0\x08":
                raise ValueError("its first bytes are not those of an IDX file of bytes")
            shape = tuple(int(n) for n in np.frombuffer(stream.read(4 * head[3]), dtype=">u4", count=head[3]))
            size = math.prod(shape)
            if not shape or size > MAX_IDX_BYTES:
                raise ValueError(f"its head promises an array of shape {shape}")
            content = bytearray()
            while block := stream.read(min(BLOCK, size + 1 - len(content))):  # not all at once: the head may lie
                content += block
        if len(content) != size:
            raise ValueError(f"its head promises {size} bytes of shape {shape}, and there are {len(content)}, or more")
    except (*BROKEN_STREAM, ValueError) as error:
        raise LasgError(f"{path} is not a sound IDX file: {reason(error)}; replace it") from error
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def ijcnn1(paths: Sequence[Path]) -> Parts:
    """Train on ijcnn1, test on ijcnn1.t."""
    train, test = (parse_libsvm(path).train for path in paths)
    return Parts(train, test, 2)


def ijcnn1_t(paths: Sequence[Path]) -> Parts:
    """Train on the first 90,000 rows of ijcnn1.t as the paper does; test on ijcnn1.

    The 1,701 rows that are left over have one class only, so they would test nothing.
    """
    train, test = (parse_libsvm(path).train for path in paths)
    return Parts(train.pick(slice(90_000)), test, 2)


def covtype(paths: Sequence[Path]) -> Parts:
    """Class 2 (lodgepole pine, about half of the rows) against the rest; every column scaled to [0, 1]."""
    with open_plain(paths[0]) as stream:
        rows = np.loadtxt(stream, dtype=np.int16, delimiter=",")
    labels = (rows[:, -1] == 2).astype(np.int64)
    features = rows[:, :-1]
    return Parts(Table(features, labels, _unit_columns(features)), None, 2)


def mnist(paths: Sequence[Path]) -> Parts:
    """All ten digits, pixels divided by 255."""
    train, test = (_mnist_table(*pair) for pair in (paths[:2], paths[2:]))
    return Parts(train, test, 10)


def mnist_3_5(paths: Sequence[Path]) -> Parts:
    """Digit 3 (class 1) against digit 5 (class 0)."""
    train, test = (_only_3_5(_mnist_table(*pair)) for pair in (paths[:2], paths[2:]))
    return Parts(train, test, 2)


def digits(_: Sequence[Path]) -> Parts:
    """scikit-learn's 8 x 8 digits divided by 16; the last 297 rows are the test."""
    content = _sklearn_datasets().load_digits()
    labels = content.target.astype(np.int64)
    table = Table(content.data, labels, lambda block: np.asarray(block / 16, dtype=np.float32))
    return Parts(table.pick(slice(1500)), table.pick(slice(1500, None)), 10)


def breast_cancer(_: Sequence[Path]) -> Parts:
    """scikit-learn's breast cancer set, columns scaled to [0, 1] on the training rows; every fifth row tests.

    Not standardised: means and deviations depend on the order of summation, minimum and maximum do not, so
    the numbers are the same on every machine. The test rows may lie a little outside [0, 1].
    """
    content = _sklearn_datasets().load_breast_cancer()
    held_out = np.arange(len(content.target)) % 5 == 4
    scale = _unit_columns(content.data[~held_out])
    table = Table(content.data, content.target.astype(np.int64), scale)
    return Parts(table.pick(~held_out), table.pick(held_out), 2)


def king_james(_: Sequence[Path]) -> Parts:
    """Windows of the text that ships with lasg; the class of a window is the part that it is of."""
    train, test = (_text_table(windows) for windows in text.windows())
    return Parts(train, test, len(text.king_james()))


PARSERS: dict[str, Callable[[Sequence[Path]], Parts]] = {
    "ijcnn1": ijcnn1,
    "ijcnn1.t": ijcnn1_t,
    "covtype": covtype,
    "mnist": mnist,
    "mnist-3-5": mnist_3_5,
    "tiny-imagenet": tiny_imagenet(slice(None)),
    "tiny-imagenet-20": tiny_imagenet(slice(20)),
    "tiny-imagenet-10a": tiny_imagenet(slice(10)),
    "tiny-imagenet-10b": tiny_imagenet(slice(10, 20)),
    "digits": digits,
    "breast-cancer": breast_cancer,
    "king-james": king_james,
}


def _sklearn_datasets() -> Any:
    try:
        import sklearn.datasets
    except ModuleNotFoundError as error:
        raise missing_extra("scikit-learn", "data") from error
    return sklearn.datasets


def _load_svmlight(path: Path, stream: IO[bytes]) -> tuple[Any, NDArray[np.float64]]:
    load = _sklearn_datasets().load_svmlight_file
    try:
        # float64 first: as float32 two large labels could become one class
        matrix, targets = load(stream, dtype=np.float64)
    except (ValueError, OverflowError, IndexError) as error:
        raise LasgError(f"{path} is not a sound LIBSVM file{_bad_line(path)}: {reason(error)}; correct it") from error
    return matrix, targets


def _bad_line(path: Path) -> str:
    """Say at which line a LIBSVM file goes wrong, if this slower second reading finds one."""
    try:
        with open_plain(path) as stream:
            for number, line in enumerate(stream, start=1):
                if not _sound_line(line.split(b"#", 1)[0].split()):
                    return f" (line {number})"
    except BROKEN_STREAM:
        return ""
    return ""


def _sound_line(tokens: list[bytes]) -> bool:
    last = -1
    try:
        if tokens and not math.isfinite(float(tokens[0])):
            return False
        for token in tokens[1:]:
            index, value = token.split(b":")
            if index == b"qid":
                continue
            with np.errstate(over="ignore"):
                finite = bool(np.isfinite(np.float32(value)))
            if int(index) <= last or not finite:
                return False
            last = int(index)
    except ValueError:
        return False
    return True


def _densify(block: Any) -> NDArray[np.float32]:
    return np.asarray(block.toarray(), dtype=np.float32)


def _unit_columns(features: NDArray[Any]) -> Callable[[Any], NDArray[np.float32]]:
    """Scale every column to [0, 1] over `features`; a constant column becomes 0."""
    low = features.min(axis=0).astype(np.float64)
    span = features.max(axis=0) - low
    span[span == 0] = 1
    return lambda block: ((block - low) / span).astype(np.float32)


def _mnist_table(images: Path, labels: Path) -> Table:
    pixels, classes = parse_idx(images), parse_idx(labels)
    if pixels.ndim != 3 or classes.shape != pixels.shape[:1]:
        raise LasgError(f"{images} and {labels} do not belong together: {pixels.shape} images, {classes.shape} labels")
    flat = pixels.reshape(len(pixels), -1)
    return Table(flat, classes.astype(np.int64), lambda block: block / np.float32(255))


def _text_table(windows: NDArray[np.uint8]) -> Table:
    parts, number, length = windows.shape
    return Table(windows.reshape(-1, length), np.repeat(np.arange(parts), number), lambda block: block, "|u1")


def _only_3_5(table: Table) -> Table:
    kept = table.pick((table.labels == 3) | (table.labels == 5))
    return Table(kept.raw, (kept.labels == 3).astype(np.int64), kept.scale)
