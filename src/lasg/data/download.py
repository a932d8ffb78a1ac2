"""Download canonical files into the cache: whole and verified, or not at all."""

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from lasg.data import cache, raw_files
from lasg.data.cache import Progress
from lasg.data.sources import FILES, Source, named
from lasg.errors import LasgError

# Seconds that one read or connection attempt may take, not the whole download.
TIMEOUT = 30.0
_BLOCK = 1 << 18


class _Failed(Exception):  # noqa: N818  # one address failed, which is not yet an error
    """One address did not deliver; the next may."""


def obtain(dataset: str, data_dir: Path | None, *, force: bool = False, progress: Progress | None = None) -> list[Path]:
    """Return a named data set's raw files, verified; those that are not here are downloaded.

    `force` downloads again what is not in the user's own folders.
    """
    paths = []
    for name in named(dataset).files:
        source = FILES[name]
        if source.instead and raw_files.find(source, data_dir) is None:
            source = FILES[source.instead]
        again = f"lasg data fetch {dataset}"
        paths.append(obtain_file(source, again, f"{again} --force", data_dir, force=force, progress=progress))
    return paths


def obtain_file(
    source: Source,
    again: str,
    fix: str,
    data_dir: Path | None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Return one raw file of a data set or of weights, verified; downloaded if it is not here.

    `again` is the command that tries once more, `fix` what replaces a damaged file in the cache.
    """
    found = raw_files.find(source, data_dir)
    if found is None or (force and found.in_cache):
        return _download(source, again, data_dir, progress)
    raw_files.verify(found, source, fix)
    return found.path


def _download(source: Source, again: str, data_dir: Path | None, progress: Progress | None) -> Path:
    target = cache.raw_folder() / source.name
    failures = []
    with cache.writing(target.parent) as temporary:
        for url in source.urls:
            try:
                _receive(url, source, temporary, progress)
            except _Failed as failure:
                failures.append(f"{url}: {failure}")
                continue
            try:
                temporary.replace(target)
                # a decompressed copy must not hide behind or outlive the new file
                if source.plain_name != source.name:
                    (target.parent / source.plain_name).unlink(missing_ok=True)
            except OSError as error:
                raise cache.unwritable(error) from error
            return target
    folders = ", ".join(str(folder) for folder, _ in raw_files.search_folders(data_dir))
    raise LasgError(
        f"could not download {source.name} ({'; '.join(failures)}), and it is not in {folders}: try again"
        f" with `{again}`, or put the file into a folder named by --data-dir or LASG_DATA"
    )


def _receive(url: str, source: Source, path: Path, progress: Progress | None) -> None:
    """Fetch one address into `path` and verify the content."""
    if not url.startswith(("https://", "http://")):
        raise _Failed("not a web address")
    request = urllib.request.Request(url, headers={"User-Agent": "lasg"})  # noqa: S310  # checked above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response, _create(path) as out:  # noqa: S310
            _copy(response, out, source.name, progress)
    except urllib.error.HTTPError as error:
        error.close()
        raise _Failed(f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        cause = error.reason
        raise _Failed(raw_files.reason(cause) if isinstance(cause, Exception) else str(cause)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Failed(raw_files.reason(error)) from error
    fault = raw_files.content_fault(path, source)
    if fault is not None:
        raise _Failed(f"the content is not the known one, {fault}")


def _create(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise cache.unwritable(error) from error


def _copy(response: http.client.HTTPResponse, out: IO[bytes], name: str, progress: Progress | None) -> None:
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdigit() else None
    done = 0
    while block := response.read(_BLOCK):
        try:
            out.write(block)
        except OSError as error:
            raise cache.unwritable(error) from error
        done += len(block)
        if progress is not None:
            progress(name, done, total)
    if total is not None and done < total:
        raise _Failed(f"the connection ended after {done:,} of {total:,} bytes")
    try:
        out.flush()
        os.fsync(out.fileno())
    except OSError as error:
        raise cache.unwritable(error) from error
