"""Lossless entropy coding, the last step of "say": the integers of a codec in as few bytes as they have news.

Nothing that is decoded changes by it, so no model does. Long vectors are coded by themselves, with a table of how often
each integer occurs. Short ones are coded by an adaptive model, which both sides carry on from message to message: it is
part of belief, checkpointed with it, and a lost upload takes it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lasg.core import entropy
from lasg.core.arrays import Array, cast
from lasg.core.codecs import Codec, IntegerCodec, Integers, Noise, Shapes, State, StatefulCodec, bytes_of
from lasg.errors import LasgError

SHORT = 4096
"""Vectors of fewer entries have an adaptive model: a table in front would cost more than it says."""

LARGEST_SCALE = 1 << 11
"""No codec's exponents are beyond it."""


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
        scales = self.codec.head(p)[0]
        return {**self._adaptive.init(workers, p + scales), "scales": np.zeros((workers, scales), np.int32)}

    init_decoder = init

    @property
    def _adaptive(self) -> entropy.AdaptiveCoder:
        most = max(self.codec.limit, LARGEST_SCALE)
        return entropy.AdaptiveCoder(lowest=-most, highest=most)

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:
        """Turn rows into messages."""
        return self._encode(self.codec.quantise(rows, noise), state)

    def _encode(self, said: Integers, state: State) -> tuple[list[bytes], State]:
        if state:
            return self._encode_short(said, state)
        bodies = [entropy.encode_symbols(row) for row in said.symbols]
        heads = [scales.astype("<i2").tobytes() + raw.tobytes() for scales, raw in zip(*said[:2], strict=True)]
        return [head + body for head, body in zip(heads, bodies, strict=True)], {}

    def _encode_short(self, said: Integers, state: State) -> tuple[list[bytes], State]:
        """Turn short vectors into messages: what nobody can foresee, then the scales' changes and the entries."""
        entries = np.concatenate([said.scales - state["scales"], said.symbols], -1)
        bodies, after = self._adaptive.encode_rows(entries, _models(state))
        messages = [raw.tobytes() + body for raw, body in zip(said.raw, bodies, strict=True)]
        return messages, {**after, "scales": said.scales}

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows, as if they were the first."""
        return self.update_decoder(messages, like, self.init_decoder(len(messages), like))[0]

    def update_decoder(self, messages: Sequence[bytes], like: Array, state: State) -> tuple[Array, State]:
        """Turn messages into rows; return the models after them."""
        p, limit = len(like), self.codec.limit
        q, r = self.codec.head(p)
        length = r if state else 2 * q + r
        for message in messages:
            if len(message) < length:
                raise LasgError(f"a message of at least {length} bytes was expected, {len(message)} came: refused")
        heads = bytes_of([message[:length] for message in messages], length)
        bodies = [message[length:] for message in messages]
        if not state:
            symbols = np.stack([entropy.decode_symbols(body, p, -limit, limit) for body in bodies])
            scales = np.ascontiguousarray(heads[:, : 2 * q]).view("<i2").astype(np.int32)
            return self.codec.restore(Integers(scales, heads[:, 2 * q :], symbols.astype(np.int32)), like), {}
        entries, after = self._adaptive.decode_rows(bodies, p + q, _models(state))
        scales, symbols = (state["scales"] + entries[:, :q]).astype(np.int32), entries[:, q:]
        if np.abs(scales).max(initial=0) > LARGEST_SCALE or np.abs(symbols).max(initial=0) > limit:
            raise LasgError("a message has an integer that its codec never says: it is damaged")
        return self.codec.restore(Integers(scales, heads, symbols), like), {**after, "scales": scales}

    def transmit_with(
        self, rows: Array, noise: Noise, encoder: State, decoder: State
    ) -> tuple[Array, int, State, State]:
        """Return the rows as decoded, without decoding: what is coded is what comes out."""
        said = self.codec.quantise(rows, noise)
        messages, after = self._encode(said, encoder)
        del decoder  # both sides have the same models
        return cast(self.codec.restore(said, rows[0]), rows), 8 * sum(map(len, messages)), after, after

    @property
    def name(self) -> str:
        """The inner codec's, and that it is coded."""
        return f"{self.codec.name}+ec"


def _models(state: State) -> State:
    """Return the adaptive models alone."""
    return {name: value for name, value in state.items() if name != "scales"}
