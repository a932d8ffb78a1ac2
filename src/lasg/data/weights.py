"""Weight files by name or path: found beside the data, in the cache, or downloaded and verified."""

import functools
from pathlib import Path

from lasg.data import cache, raw_files
from lasg.data.cache import Progress
from lasg.data.download import obtain_file
from lasg.data.sources import Source
from lasg.errors import LasgError

OFFICIAL = {
    "resnet18-imagenet": Source(
        "resnet18-f37072fd.pth",
        "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
        46_830_571,
        ("https://download.pytorch.org/models/resnet18-f37072fd.pth",),
    )
}
"""Weights that others trained and publish."""
SUFFIXES = (".safetensors", ".pth", ".pt")


def made_folder() -> Path:
    """Return where weights that lasg trained itself are kept."""
    return cache.root() / "weights"


def find(name: str, data_dir: Path | None) -> Path | None:
    """Return a weight file that is here: a path, or a file of that name beside the data or in the cache."""
    if name in OFFICIAL:
        found = raw_files.find(OFFICIAL[name], data_dir)
        return None if found is None else found.path
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # ~somebody who is not known here
        return None
    if path.is_file():
        return path
    if path.name != name or path.suffix in SUFFIXES:
        return None
    folders = [folder for folder, _ in raw_files.search_folders(data_dir)]
    tried = (folder / f"{name}{suffix}" for folder in [*folders, made_folder()] for suffix in SUFFIXES)
    return next((place for place in tried if place.is_file()), None)


def obtain(name: str, data_dir: Path | None, progress: Progress | None = None) -> Path:
    """Return a weight file, downloaded and verified where it is an official one that is not here."""
    if name in OFFICIAL:
        return obtain_file(OFFICIAL[name], "the same command", "delete this file", data_dir, progress=progress)
    path = find(name, data_dir)
    if path is None:
        plain = Path(name).name.removesuffix(".safetensors")
        raise LasgError(
            f"there is no weight file {name!r}: give a path, or put {plain}.safetensors into a folder named by"
            f" --data-dir or LASG_DATA and say {plain}. {', '.join(OFFICIAL)} is downloaded; lasg pretrain makes others"
        )
    return path


def sha256(path: Path) -> str:
    """Return a weight file's checksum; computed once for a file that stays as it is."""
    try:
        stat = path.stat()
        return _sha256(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise LasgError(f"{path} cannot be read: {raw_files.reason(error)}") from error


@functools.lru_cache(maxsize=4)
def _sha256(path: Path, size: int, changed: int) -> str:  # noqa: ARG001
    return raw_files.hash_tree(path)
