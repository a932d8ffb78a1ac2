"""Codecs of one's own, of any class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lasg.core.arrays import Array
from lasg.core.codecs import Codec, Noise


class CodecLike(Protocol):
    """What is enough of a codec of your own: `as_codec` adds the rest."""

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:
        """Turn rows `(n, p)` into `n` messages."""
        ...

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn `n` messages into rows `(n, p)`."""
        ...


class OwnCodec(Codec):
    """A user's object with `encode` and `decode`, and perhaps `length` or `unbiased`."""

    def __init__(self, codec: Any) -> None:
        self.codec = codec
        self.unbiased = bool(getattr(codec, "unbiased", False))  # type: ignore[misc]

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:
        """Turn rows into messages."""
        return self.codec.encode(rows, noise)  # type: ignore[no-any-return]

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        return self.codec.decode(messages, like)

    def length(self, p: int, itemsize: int = 4) -> int | None:  # noqa: ARG002
        """Bytes of a message, if the object knows."""
        length = getattr(self.codec, "length", None)
        return None if length is None else int(length(p))

    @property
    def name(self) -> str:
        """The name of the object's class."""
        return type(self.codec).__name__

    def __repr__(self) -> str:
        """Say what it wraps."""
        if "__repr__" in vars(type(self.codec)):
            return repr(self.codec)
        settings = sorted(f"{name}={value!r}" for name, value in vars(self.codec).items())
        return f"{self.name}({', '.join(settings)})"


def as_codec(codec: CodecLike) -> Codec:
    """Return a codec for anything that has `encode` and `decode`."""
    return codec if isinstance(codec, Codec) else OwnCodec(codec)
