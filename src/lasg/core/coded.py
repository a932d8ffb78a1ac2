"""Lossless entropy coding, the last step of "say": the integers of a codec in as few bytes as they have news.

Nothing that is decoded changes by it, so no model does. Long vectors are coded by themselves, with a table of how often
each integer occurs. Short ones are coded by an adaptive model, which both sides carry on from message to message: it is
part of belief, checkpointed with it, and a lost upload takes it back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lasg.core import entropy
from lasg.core.adaptive_coding import INT32_HIGHEST
from lasg.core.arrays import Array, FloatArray, IntArray, cast
from lasg.core.codecs import Codec, IntegerCodec, Integers, Noise, Shapes, State, StatefulCodec, bytes_of
from lasg.errors import LasgError

SHORT = 4096
"""Vectors of fewer entries have an adaptive model: a table in front would cost more than it says."""

FRACTION = 4
"""Bits of the fraction of the scale that is expected."""
EARLY = 8
"""In the first messages a scale is expected to be the last one, then the mean of the last ones."""


@dataclass(frozen=True)
class Coded(StatefulCodec):
    """The messages of a codec that makes integers, entropy-coded."""

    codec: IntegerCodec

    def for_shapes(self, shapes: Shapes) -> Codec:
        """Return the same around the codec for these shapes."""
        inner = self.codec.for_shapes(shapes)
        assert isinstance(inner, IntegerCodec)
        return Coded(inner)

    def init(self, workers: int, like: Array) -> State:
        """Return the adaptive models of so many workers, and their last scales; nothing for long vectors."""
        p = like.shape[-1]
        if p >= SHORT:
            return {}
        scales = self.codec.scales(p)
        return {**self._adaptive(p).init(workers, p + scales), "scales": np.zeros((workers, scales), np.int64)}

    init_decoder = init

    def _adaptive(self, p: int) -> entropy.AdaptiveCoder:
        codec, limit = self.codec, self.codec.limit
        known: dict[str, Any] = {"dithered": codec.dithered, "norm": codec.norm(p)}
        return entropy.AdaptiveCoder(lowest=-limit, highest=limit, wide=codec.scales(p), digits=codec.digits, **known)

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:
        """Turn rows into messages."""
        draws = _drawn_once(noise)
        return self._encode(self.codec.quantise(rows, draws), draws, state)

    def _noise(self, noise: Noise | None) -> FloatArray | None:
        """Return the noise of dithered entries; others are coded without it."""
        if not self.codec.dithered:
            return None
        if noise is None:
            raise LasgError(f"messages of {self.name} cannot be decoded without the noise that they were made with")
        return noise()

    def _encode(self, said: Integers, noise: Noise, state: State) -> tuple[list[bytes], State]:
        draws = self._noise(noise)
        if state:
            return self._encode_short(said, draws, state)
        own = [None] * len(said.symbols) if draws is None else draws
        bodies = [entropy.encode_symbols(row, its) for row, its in zip(said.symbols, own, strict=True)]
        return [scales.astype("<i4").tobytes() + body for scales, body in zip(said.scales, bodies, strict=True)], {}

    def _encode_short(self, said: Integers, draws: FloatArray | None, state: State) -> tuple[list[bytes], State]:
        """Turn short vectors into messages: the entries, then what the scales are beside those expected."""
        p = said.symbols.shape[-1]
        entries = np.concatenate([said.symbols, said.scales - self._expected(state)], -1)
        messages, after = self._adaptive(p).encode_rows(entries, _models(state), draws)
        return messages, {**after, "scales": _expect(said.scales, state)}

    def _expected(self, state: State) -> IntArray:
        """Return the scales that are expected, down to the bits that cannot be."""
        digits = self.codec.digits
        expected: IntArray = state["scales"] >> (FRACTION + digits) << digits
        return expected

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows, as if they were the first."""
        return self.update_decoder(messages, like, self.init_decoder(len(messages), like))[0]

    def update_decoder(self, messages: Sequence[bytes], like: Array, state: State) -> tuple[Array, State]:
        """Turn messages into rows, where that needs no noise; return the models after them."""
        return self._decode(messages, like, None, state)

    def decode_with(self, messages: Sequence[bytes], like: Array, noise: Noise, state: State) -> tuple[Array, State]:
        """Turn messages into rows; return the models after them."""
        return self._decode(messages, like, noise, state)

    def _decode(self, messages: Sequence[bytes], like: Array, noise: Noise | None, state: State) -> tuple[Array, State]:
        p, limit = len(like), self.codec.limit
        q, draws = self.codec.scales(p), self._noise(noise)
        if not state:
            head = bytes_of([message[: 4 * q] for message in messages], 4 * q)
            own = [None] * len(messages) if draws is None else draws
            bodies = zip((message[4 * q :] for message in messages), own, strict=True)
            symbols = np.stack([entropy.decode_symbols(body, p, -limit, limit, its) for body, its in bodies])
            return self.codec.restore(Integers(head.view("<i4").astype(np.int32), symbols), like), {}
        entries, after = self._adaptive(p).decode_rows(messages, p + q, _models(state), draws)
        scales = entries[:, p:] + self._expected(state)
        if np.abs(scales).max(initial=0) > INT32_HIGHEST:
            raise LasgError("a message has a scale that its codec never says: it is damaged")
        said = Integers(scales.astype(np.int32), entries[:, :p])
        return self.codec.restore(said, like), {**after, "scales": _expect(said.scales, state)}

    def transmit_with(
        self, rows: Array, noise: Noise, encoder: State, decoder: State
    ) -> tuple[Array, int, State, State]:
        """Return the rows as decoded, without decoding: what is coded is what comes out."""
        draws = _drawn_once(noise)
        said = self.codec.quantise(rows, draws)
        messages, after = self._encode(said, draws, encoder)
        del decoder  # both sides have the same models
        return cast(self.codec.restore(said, rows[0]), rows), 8 * sum(map(len, messages)), after, after

    @property
    def name(self) -> str:
        """The inner codec's, and that it is coded."""
        return f"{self.codec.name}+ec"


def _drawn_once(noise: Noise) -> Noise:
    """Return the same noise, drawn when it is first asked for."""
    return functools.cache(noise)


def _expect(scales: IntArray, state: State) -> IntArray:
    """Return the scales that are expected after these."""
    came = scales.astype(np.int64) << FRACTION
    early = state["messages"][:, None] < EARLY
    expected: IntArray = np.where(early, came, (state["scales"] + came) >> 1)
    return expected


def _models(state: State) -> State:
    """Return the adaptive models alone."""
    return {name: value for name, value in state.items() if name != "scales"}
