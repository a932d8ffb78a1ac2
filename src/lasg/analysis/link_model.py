"""A network and compute model: what a round would last on real links. docs/links.md says what it counts, and what not.

A round lasts until its slowest participant has the model, has computed and has answered. On a shared channel the
answers queue: it lasts until the slowest is ready to answer, and then as long as all answers take one after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import FloatArray, IntArray, Mask
from lasg.errors import LasgError

CHUNK = 1 << 22
"""Entries of (rounds x workers) that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class LinkModel:
    """Links and speed of the workers: one number for all, or one per worker."""

    name: str
    latency: float | tuple[float, ...]
    """Seconds one way: half a round trip."""
    up: float | tuple[float, ...]
    """Bits per second, worker to server."""
    down: float | tuple[float, ...]
    """Bits per second, server to worker."""
    gradient: float | tuple[float, ...]
    """Seconds per gradient evaluation: one minibatch gradient."""
    shared: bool = False
    """Whether all are on one channel, a radio cell: the model is broadcast once, uploads go one after another."""

    def __post_init__(self) -> None:
        if not isinstance(self.shared, bool):
            raise LasgError(f"network {self.name}: shared must be true or false, got {self.shared!r}")
        for name, wanted in (("latency", ">= 0"), ("up", "> 0"), ("down", "> 0"), ("gradient", ">= 0")):
            given = getattr(self, name)
            values = given if isinstance(given, list | tuple) else (given,)
            if not values or not all(_is_finite(v) and (v > 0 or (v == 0 and wanted == ">= 0")) for v in values):
                raise LasgError(
                    f"network {self.name}: {name} must be a number {wanted} or a list of them, got {given!r}"
                )
            if isinstance(given, list):
                object.__setattr__(self, name, tuple(given))

    def per_worker(self, workers: int) -> dict[str, FloatArray]:
        """Return each number as an array, one entry per worker."""
        numbers: dict[str, FloatArray] = {}
        for name in NUMBERS:
            values = np.atleast_1d(np.asarray(getattr(self, name), np.float64))
            if len(values) not in {1, workers}:
                raise LasgError(f"network {self.name}: {name} lists {len(values)} workers, the run has {workers}")
            numbers[name] = np.broadcast_to(values, (workers,))
        return numbers


NUMBERS = tuple(field.name for field in fields(LinkModel) if field.name not in {"name", "shared"})


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < math.inf


class Traffic(NamedTuple):
    """What the rounds of a run carried."""

    uploaded: Mask
    """Who uploaded: `(rounds, M)`."""
    server_rule: bool
    """Whether only those that were asked, and so uploaded, took part."""
    evaluations: IntArray
    """Gradient evaluations of a participant, one number per round."""
    model_bits: float
    """A download."""
    upload_bits: float
    """An upload, with what rides along (a flag, an estimate)."""
    silent_bits: float
    """The answer of a silent worker."""
    fresh: Mask | None = None
    """In which rounds the model is another than in the round before, and travels; None: in all."""


def round_seconds(network: LinkModel, traffic: Traffic) -> npt.NDArray[np.float64]:
    """Return how long each round lasts."""
    rounds, workers = traffic.uploaded.shape
    of = network.per_worker(workers)
    heard = 2 * of["latency"] + traffic.model_bits / of["down"]
    again = 2 * of["latency"] + np.zeros(workers)
    sending, flag = traffic.upload_bits / of["up"], traffic.silent_bits / of["up"]
    silent = np.zeros(workers) if traffic.server_rule else heard
    lasted = np.empty(rounds)
    step = max(1, CHUNK // workers)
    for start in range(0, rounds, step):
        some = slice(start, start + step)
        uploaded = traffic.uploaded[some]
        busy = traffic.evaluations[some, None] * of["gradient"]
        if traffic.server_rule:
            busy = busy * uploaded
        told = np.where(uploaded, heard, silent)
        if traffic.fresh is not None:
            told = np.where(traffic.fresh[some, None], told, again)
        ready, answer = told + busy, np.where(uploaded, sending, flag)
        lasted[some] = ready.max(1) + answer.sum(1) if network.shared else (ready + answer).max(1)
    return lasted


PRESETS = {
    network.name: network
    for network in (
        LinkModel(name="datacenter", latency=0.25e-3, up=10e9, down=10e9, gradient=0.1e-3),
        LinkModel(name="cross-region", latency=44e-3, up=100e6, down=100e6, gradient=0.1e-3),
        LinkModel(name="home", latency=10.5e-3, up=45.7e6, down=85.7e6, gradient=1e-3),
        LinkModel(name="wireless", latency=2e-3, up=20e6, down=20e6, gradient=1e-3, shared=True),
        LinkModel(name="mobile", latency=20e-3, up=11.2e6, down=36e6, gradient=5e-3),
        LinkModel(name="lora", latency=1.0, up=54.7, down=176.0, gradient=0.1),
    )
}
"""Links by name, fastest first."""
