"""Damage to files, as disks, copies and people do it. Each is a function of a file's bytes, chance, and other files."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Mutation = Callable[[bytes, random.Random, Sequence[bytes]], bytes]


def bit(content: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    """Turn one bit."""
    found = bytearray(content)
    found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def some_bytes(content: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    """Write some other bytes in one place: chance ones, zeros, or what stands elsewhere in the file."""
    found, length = bytearray(content), chance.choice([1, 2, 8, 64, 512])
    at = chance.randrange(len(found))
    length = min(length, len(found) - at)
    elsewhere = chance.randrange(len(found) - length + 1)
    found[at : at + length] = chance.choice(
        [chance.randbytes(length), bytes(length), found[elsewhere : elsewhere + length]]
    )
    return bytes(found)


def cut(content: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    """Cut the file short, or let something follow it."""
    if chance.random() < 0.2:
        return content + chance.choice([b"\0", b"\n", content[-40:], chance.randbytes(20)])
    return content[: chance.randrange(len(content))]


def swap(_: bytes, chance: random.Random, others: Sequence[bytes]) -> bytes:
    """Put a file of another run there."""
    return chance.choice(others)


def digits(content: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    """Replace some of the digits by others, as a hand in an editor does."""
    found = bytearray(content)
    places = [i for i, byte in enumerate(found) if 48 <= byte <= 57]
    for at in chance.sample(places, min(len(places), chance.choice([1, 1, 2, 5, len(places)]))):
        found[at] = 48 + (found[at] - 48 + chance.randrange(1, 10)) % 10
    return bytes(found)


MUTATIONS: dict[str, Mutation] = {"bits": bit, "bytes": some_bytes, "cut": cut, "swapped": swap, "digits": digits}
