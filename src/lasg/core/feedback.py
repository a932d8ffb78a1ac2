"""Error feedback inside a codec: what a message leaves out is added to the worker's next one, whatever the belief."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lasg.core.arrays import Array, cast, zeros
from lasg.core.codecs import Codec, Noise, Shapes, State, StatefulCodec

HEARD = "heard."
"""Before the names of what the decoder remembers, where the encoder keeps it too."""


@dataclass(frozen=True)
class Feedback(StatefulCodec):
    """q = C(d + e), e <- d + e - q, in every message (Seide et al. 2014; Stich et al. 2018).

    With `replace` it is what SASG does: a stale sparse gradient serves on while a worker is silent. The belief
    `residual` is another thing: there e grows in every round, and a message is used once.
    """

    codec: Codec

    def for_shapes(self, shapes: Shapes) -> Codec:
        """Return the same around the codec for these shapes."""
        return replace(self, codec=self.codec.for_shapes(shapes))

    def init(self, workers: int, like: Array) -> State:
        """Return that nothing was left out."""
        heard = {HEARD + name: value for name, value in self.init_decoder(workers, like).items()}
        return {"left_out": zeros((workers, like.shape[-1]), like), **self.codec.init(workers, like), **heard}

    def init_decoder(self, workers: int, like: Array) -> State:
        """Return what the codec's decoder remembers."""
        return self.codec.init_decoder(workers, like)

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:
        """Turn rows, and what was left out, into messages."""
        wanted = rows + state["left_out"]
        # What was left out is known from what is decoded, which may depend on the messages before.
        heard = {name.removeprefix(HEARD): value for name, value in state.items() if name.startswith(HEARD)}
        inner = {name: value for name, value in state.items() if name != "left_out" and not name.startswith(HEARD)}
        if isinstance(self.codec, StatefulCodec):
            messages, inner = self.codec.update(wanted, noise, inner)
        else:
            messages = self.codec.encode(wanted, noise)
        decoded, heard = self.decode_with(messages, rows[0], noise, heard)
        after = {**inner, **{HEARD + name: value for name, value in heard.items()}}
        return messages, {"left_out": wanted - cast(decoded, rows), **after}

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        return self.codec.decode(messages, like)

    def update_decoder(self, messages: Sequence[bytes], like: Array, state: State) -> tuple[Array, State]:
        """Turn messages into rows."""
        if isinstance(self.codec, StatefulCodec):
            return self.codec.update_decoder(messages, like, state)
        return self.codec.decode(messages, like), state

    def decode_with(self, messages: Sequence[bytes], like: Array, noise: Noise, state: State) -> tuple[Array, State]:
        """Turn messages into rows."""
        if isinstance(self.codec, StatefulCodec):
            return self.codec.decode_with(messages, like, noise, state)
        return self.codec.decode(messages, like), state

    @property
    def name(self) -> str:
        """The inner codec's, and that it has feedback."""
        return f"{self.codec.name}+ef"
