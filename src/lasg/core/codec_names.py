"""Codecs by name: dense, qsgd8:512, grid0.25, sign:512, topk0.01:2bit, lowrank2; with +ec the integers are coded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lasg.core.block_codec import BlockCodec
from lasg.core.blocks import Blocks
from lasg.core.codecs import QSGD, Codec, Dense, IntegerCodec
from lasg.core.coded import Coded
from lasg.core.feedback import Feedback
from lasg.core.grids import Grid, Sign, Uniform
from lasg.core.lowrank import LowRank
from lasg.core.own_codec import CodecLike
from lasg.core.sparse import BITS, TopK
from lasg.errors import LasgError

CODED = "ec"
"""The part of a name that says: entropy-coded."""
FEEDBACK = "ef"
"""The part of a name that says: what a message leaves out is part of the next."""
BLOCKS = re.compile(r"blocks(\d+)?")
"""The part of a name that says: decided, and said, block by block."""
KNOWN = (
    "dense, qsgdB with B = 2..16 bits, or qsgdB:N with a norm every N entries, gridBETA, uniformB, "
    "sign:N, topkSHARE (:2bit or :float, :chunkN, :warmN), lowrankR (:rounded); +ec codes the integers, "
    "+ef feeds errors back, +blocks says every tensor by itself"
)


def parse(name: str) -> Codec:
    """Return the codec called `name`."""
    base, *after = name.split("+")
    if after and BLOCKS.fullmatch(after[-1]):
        return by_blocks(parse("+".join([base, *after[:-1]])), after[-1])
    codec = _parse(base)
    if codec is None or after not in ([], [CODED], [FEEDBACK], [CODED, FEEDBACK]):
        raise LasgError(f"unknown codec {name!r}: {KNOWN}")
    if CODED in after:
        codec = _coded(base, codec)
    return Feedback(codec) if FEEDBACK in after else codec


def by_blocks(codec: Codec, part: str) -> BlockCodec:
    """Return a codec that says block by block, as a part of a name, blocks or blocks4096, has it."""
    found = BLOCKS.fullmatch(part)
    assert found is not None
    return BlockCodec(codec, Blocks(None if found[1] is None else int(found[1])))


def _coded(name: str, codec: Codec) -> Codec:
    if isinstance(codec, TopK):
        return replace(codec, coded=True)
    if isinstance(codec, IntegerCodec):
        return Coded(codec)
    raise LasgError(f"{name} makes no integers, so there is nothing to code: leave +ec out, or take qsgd, grid or topk")


def _parse(name: str) -> Codec | None:
    """Return a codec without +ec; None: there is none of that name."""
    for pattern, make in _PATTERNS.items():
        if found := re.fullmatch(pattern, name):
            return make(*found.groups())
    return None


_PATTERNS: dict[str, Callable[..., Codec | None]] = {
    r"dense": Dense,
    r"qsgd(\d+)(?::(\d+))?": lambda bits, bucket: QSGD(bits=int(bits), bucket=int(bucket) if bucket else None),
    r"grid(0?\.\d+)?": lambda beta: Grid(float(beta)) if beta else Grid(),
    r"uniform(\d+)": lambda bits: Uniform(int(bits)),
    r"sign(?::(\d+))?": lambda bucket: Sign(int(bucket)) if bucket else Sign(),
    r"lowrank(\d+)?(:rounded)?": lambda rank, rounded: LowRank(int(rank or 2), rounded=rounded is not None),
    r"topk(\d*\.?\d+)?((?::[a-z0-9]+)*)": lambda share, parts: _top_k(float(share or 0.01), parts.split(":")[1:]),
}


def _top_k(share: float, parts: list[str]) -> TopK | None:
    options: dict[str, Any] = {}
    for part in parts:
        number = re.fullmatch(r"(chunk|warm)(\d+)", part)
        key, value = ("values", part) if part in BITS else (number[1], int(number[2])) if number else ("", None)
        if not key or key in options:
            return None
        options[key] = value
    return TopK(share=share, **options)


def name_of(codec: CodecLike) -> str | None:
    """Return the name of one of lasg's own codecs, which `parse` reads; None for any other."""
    if isinstance(codec, Coded | Feedback):
        inner = name_of(codec.codec)
        return None if inner is None else f"{inner}+{CODED if isinstance(codec, Coded) else FEEDBACK}"
    if isinstance(codec, BlockCodec):
        inner = name_of(codec.codec)
        return None if inner is None else f"{inner}+blocks{codec.blocks.size or ''}"
    for kind, name in _NAMES.items():
        if isinstance(codec, kind):
            return name(codec)
    return None


def _decimal(number: float) -> str:
    """Return all digits of a number, without an exponent."""
    return str(np.format_float_positional(number, trim="-"))


def _top_k_name(codec: TopK) -> str:
    parts = [f"topk{_decimal(codec.share)}"] + ([codec.values] if codec.values != "sign" else [])
    parts += [f"chunk{codec.chunk}"] if codec.chunk else []
    parts += [f"warm{codec.warm}"] if codec.warm else []
    return ":".join(parts) + (f"+{CODED}" if codec.coded else "")


_NAMES: dict[type, Callable[[Any], str]] = {
    Dense: lambda _: "dense",
    QSGD: lambda codec: f"qsgd{codec.bits}" + (f":{codec.bucket}" if codec.bucket else ""),
    Grid: lambda codec: f"grid{_decimal(codec.beta)}",
    Uniform: lambda codec: f"uniform{codec.bits}",
    Sign: lambda codec: f"sign:{codec.bucket}",
    LowRank: lambda codec: f"lowrank{codec.rank}" + (":rounded" if codec.rounded else ""),
    TopK: _top_k_name,
}
