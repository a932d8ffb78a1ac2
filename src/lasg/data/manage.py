"""What `lasg data list`, `fetch` and `check` do."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lasg.data import cache, raw_files
from lasg.data.cache import Damaged, Progress
from lasg.data.download import obtain
from lasg.data.loaders import (
    checked_path,
    embedded,
    is_embedded,
    parse_own,
    prepare,
    prepared_place,
)
from lasg.data.sources import DATASETS, FILES, SKLEARN, is_own, named
from lasg.errors import LasgError, missing_extra

State = Literal["ok", "damaged", "absent"]


@dataclass(frozen=True)
class FileStatus:
    """One line of `lasg data list`. `size` is the file's, or about the download's where it is not here."""

    dataset: str
    file: str
    path: Path | None
    where: str
    size: int | None
    prepared: bool


@dataclass(frozen=True)
class CheckResult:
    """One line of `lasg data check`; `mend` is a command or advice, empty where nothing is to be done."""

    dataset: str
    item: str
    path: Path | None
    state: State
    reason: str
    mend: str


def status(data_dir: Path | str | None = None) -> list[FileStatus]:
    """Say for every file of every named data set where it lies."""
    lines, data_dir = [], raw_files.path_or_none(data_dir)
    for name in DATASETS:
        if is_embedded(name):
            package, here = named(name).embedded_in, _is_installed(named(name).embedded_in)
            where = f"in {package}" if here else f"not here: {package} is not installed"
            lines.append(FileStatus(name, "(embedded)", None, where, None, here))
            continue
        ready = _is_prepared(name)
        for file in named(name).files:
            found = raw_files.find(FILES[file], data_dir)
            if found is None:
                lines.append(FileStatus(name, file, None, "not here", FILES[file].size, ready))
            else:
                size = found.path.stat().st_size
                lines.append(FileStatus(name, file, found.path, str(found.path), size, ready))
    return lines


def fetch(
    name: str,
    force: bool = False,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Download what a data set lacks, verify its files, prepare it; return the raw files (none if embedded).

    `force` downloads again what lies in the cache and prepares again. Files in the user's own folders are
    never replaced: a damaged one there is an error.
    """
    data_dir = raw_files.path_or_none(data_dir)
    if is_embedded(name):
        embedded(name)
        return []
    if not force and _is_prepared(name):
        return [checked_path(name)] if is_own(name) else obtain(name, data_dir, progress=progress)
    return prepare(name, data_dir, force=force, progress=progress)


def check(name: str | None = None, data_dir: Path | str | None = None) -> list[CheckResult]:
    """Read every byte of one data set, or of all named ones, and compare with the checksums."""
    data_dir = raw_files.path_or_none(data_dir)
    if name is None:
        return [result for each in DATASETS for result in check(each, data_dir)]
    if is_embedded(name):
        return [_check_embedded(name)]
    if is_own(name):
        return [_check_own(name), _check_prepared(name)]
    return [*(_check_file(name, file, data_dir) for file in named(name).files), _check_prepared(name)]


def _has_sklearn() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def _is_installed(package: str) -> bool:
    return package != SKLEARN or _has_sklearn()


def _is_prepared(name: str) -> bool:
    try:
        return cache.look(*prepared_place(name)) is not None
    except Damaged:
        return False


def _check_embedded(name: str) -> CheckResult:
    package = named(name).embedded_in
    if not _is_installed(package):
        error = missing_extra(package, "data")
        return CheckResult(name, "(embedded)", None, "absent", str(error), "pip install 'lasg[data]'")
    try:
        embedded(name)
    except LasgError as error:
        return CheckResult(name, "(embedded)", None, "damaged", str(error), f"pip install --force-reinstall {package}")
    return CheckResult(name, "(embedded)", None, "ok", f"in {package}", "")


def _check_file(name: str, file: str, data_dir: Path | None) -> CheckResult:
    found = raw_files.find(FILES[file], data_dir)
    if found is None:
        return CheckResult(name, file, None, "absent", "not here", f"lasg data fetch {name}")
    fault = raw_files.content_fault(found.path, FILES[file])
    if fault is None:
        return CheckResult(name, file, found.path, "ok", "checksum is right", "")
    return CheckResult(
        name, file, found.path, "damaged", fault, raw_files.how_to_fix(found, f"lasg data fetch {name} --force")
    )


def _check_own(name: str) -> CheckResult:
    path = checked_path(name)
    try:
        parse_own(name)
    except LasgError as error:
        return CheckResult(name, path.name, path, "damaged", str(error), "correct or replace this file")
    return CheckResult(name, path.name, path, "ok", "it can be read", "")


def _check_prepared(name: str) -> CheckResult:
    folder, sha256 = prepared_place(name)
    try:
        if cache.verify(folder, sha256):
            return CheckResult(name, "prepared", folder, "ok", "checksums are right", "")
    except Damaged as damage:
        mend = f"lasg data fetch {name} --force"
        return CheckResult(name, "prepared", folder, "damaged", str(damage), mend)
    return CheckResult(name, "prepared", None, "absent", "will be made on first use", "")
