"""Error feedback inside a codec: what one message leaves out is part of the next, and both sides agree on it."""

from __future__ import annotations

import numpy as np
import pytest

from lasg.core.codec_names import parse
from lasg.core.codecs import StatefulCodec
from tests.core.toy import KINDS, as_kind, numpy_of

P, W, ROUNDS = 9, 3, 12
NAMES = ("qsgd4+ef", "qsgd4+ec+ef", "grid0.25+ec+ef", "uniform4+ec+ef", "sign:4+ef", "sign:4+ec+ef", "topk0.3:warm3+ef")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*NAMES, "topk0.3:float+ec+ef", "lowrank1+ef", "dense+ef"])
def test_what_was_said_and_what_is_left_out_add_up_to_what_was_meant(name: str, kind: str) -> None:
    codec = parse(name)
    assert isinstance(codec, StatefulCodec)
    codec = codec.for_shapes(((3, 3),))
    assert isinstance(codec, StatefulCodec)
    like = as_kind(np.zeros(P), kind)
    encoder, decoder = codec.init(W, like), codec.init_decoder(W, like)
    meant = said = np.zeros((W, P))
    for k in range(ROUNDS):
        rng = np.random.default_rng(k)
        rows, draws = rng.normal(size=(W, P)), rng.random((W, P))
        messages, encoder = codec.update(as_kind(rows, kind), draws.copy, encoder)
        decoded, decoder = codec.decode_with(messages, like, draws.copy, decoder)
        meant, said = meant + rows, said + numpy_of(decoded)
        np.testing.assert_allclose(said + numpy_of(encoder["left_out"]), meant, rtol=0, atol=1e-12)
    assert (np.abs(meant - said) > 0).any() == (name != "dense+ef")
