"""The record of an elastic run: what its members said in every round. `read` gives it back, for a replay."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lasg.core.arrays import copies
from lasg.errors import LasgError, wrap_write_errors
from lasg.packing import pack, unpack
from lasg.transports.elastic import Closed
from lasg.transports.elastic_server import ElasticServer, Entry

START, ROUNDS = "start.safetensors", "rounds.bin"
SIZES = struct.Struct("<II")
"""The length of a record, and its checksum."""


class Recorder:
    """Writes the rounds that this rank saw: the state before the first of them, and then what members said."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        self.folder, self.settings = Path(folder), settings
        self._file: Any = None
        if (self.folder / ROUNDS).exists():
            raise LasgError(f"{folder} has the record of a run already: name another folder, or remove it")

    def note(self, closed: Closed, server: ElasticServer) -> None:
        """Write a round; the first one gives only the state that the others begin from."""
        with wrap_write_errors(self.folder):
            if self._file is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                start = {"settings": self.settings, "state": copies(server.state())}
                (self.folder / START).write_bytes(pack(start))
                self._file = (self.folder / ROUNDS).open("ab")
                return
            parts = [entry.pack() for entry in closed.entries]
            head = {
                "k": closed.k,
                "members": closed.members,
                "checksum": closed.checksum,
                "sizes": list(map(len, parts)),
            }
            record = json.dumps(head).encode() + b"\n" + b"".join(parts)
            self._file.write(SIZES.pack(len(record), zlib.crc32(record)) + record)
            self._file.flush()

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()


class Recorded(NamedTuple):
    """A round of a record."""

    k: int
    members: list[str]
    checksum: int
    entries: list[Entry]


def read_start(folder: Path) -> dict[str, Any]:
    """Return the settings of a record's run, and the state before its first round."""
    path = folder / START
    if not path.exists():
        raise LasgError(f"{folder} has no record of an elastic run: record one with lasg.Elastic(record=...)")
    return unpack(path.read_bytes(), str(path))


def read_rounds(folder: Path) -> Iterator[Recorded]:
    """Give the rounds of a record; one that was cut off at the end is left out, as the rank was killed in it."""
    data, at = (folder / ROUNDS).read_bytes(), 0
    while at + SIZES.size <= len(data):
        size, check = SIZES.unpack_from(data, at)
        record = data[at + SIZES.size : at + SIZES.size + size]
        if len(record) < size:
            return
        if zlib.crc32(record) != check:
            raise LasgError(f"{folder / ROUNDS} is damaged after byte {at}: what follows cannot be replayed")
        line, _, rest = record.partition(b"\n")
        head, entries = json.loads(line), []
        for length in head["sizes"]:
            entries.append(Entry.unpack(rest[:length]))
            rest = rest[length:]
        yield Recorded(head["k"], head["members"], head["checksum"], entries)
        at += SIZES.size + size
