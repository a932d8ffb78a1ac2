"""The runs whose traces are kept, as plain data: nothing here knows how lasg makes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ALGORITHMS = (
    *("sgd", "lag-wk", "lasg-wk1", "lasg-wk2", "lasg-ps", "lasg-pse", "local-sgd"),
    *("qsgd", "laqsg-wk1", "laqsg-wk2", "laqsg-ps", "laqsg-pse"),
)
ENGINES = ("simulation", "ranks", "federation")
PROBLEMS = ("digits", "breast-cancer", "module")
DTYPES = ("float32", "float64")
LAZY = "lazy optimizer"
"""The engine that is a training loop of one's own on ranks."""
WORKERS, RANKS, ROUNDS = 4, 2, 60
FEWER = 40
"""Rounds of networks, which take longer, and of what differs by its way alone."""

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"partition": "sorted", "batch": 0.1, "eta": 0.45, "D": 10, "c": 0.03, "bits": 8},
    "breast-cancer": {"partition": "dirichlet", "alpha": 0.5, "batch": 0.1, "eta": 1.7, "D": 15, "c": 0.3, "bits": 4},
    "module": {"batch": 0.05, "eta": 0.45, "D": 7, "c": 0.3, "bits": 8, "lam": 1e-4},
    "normed": {"batch": 0.05, "eta": 0.2, "D": 15, "c": 0.3, "bits": 8},
    "failing": {"batch": 0.1, "eta": 0.9, "D": 15, "c": 0.3, "bits": 8},
}
"""What all cells on a problem share: keys of a spec. `engines.py` makes the last three, which no spec can name.

No step size is a power of two: products with those are exact, and would hide that their order has changed.
"""
LOOSE = ("lasg-ps", "laqsg-ps")
"""Their left side is far above the others': with the others' c nobody would ever be silent for D rounds."""
HOW_LAZY = ("c", "c_d", "rho")


@dataclass(frozen=True, eq=False)
class Cell:
    """One run."""

    engine: str
    problem: str
    dtype: str
    algorithm: str
    more: Mapping[str, Any] = field(default_factory=dict)
    """Settings in place of the problem's: keys of a spec."""
    exchange: str = "auto"
    hub: int = 0
    """Of ranks: the one that the others send to, under exchange hub."""
    relay: bool = True
    """Of a federation: whether nodes are told what changed the model."""
    rounds: int = ROUNDS

    @property
    def settings(self) -> dict[str, Any]:
        """All settings of the run; another way to say how lazy it is takes the place of c."""
        kept = dict(SETTINGS[self.problem])
        if any(name in self.more for name in HOW_LAZY):
            del kept["c"]
        elif self.algorithm in LOOSE:
            kept["c"] *= 60
        return {"workers": WORKERS, "H": 3, "seed": 7, **kept, **self.more}

    @property
    def name(self) -> str:
        """A name that no other cell has, without blanks."""
        words = [self.engine, self.problem, self.dtype, self.algorithm]
        words += [f"{key}={value}" for key, value in _flat(self.more)]
        words += [self.exchange] if self.exchange != "auto" else []
        words += [f"hub{self.hub}"] if self.hub else []
        words += [] if self.relay else ["relay-off"]
        return "_".join(words).translate(str.maketrans(" /:", "---"))

    @property
    def group(self) -> str:
        """Which cells are compared together."""
        return f"{self.engine}, {self.problem}, {self.dtype}"

    def described(self) -> str:
        """Return all that decides the cell, as JSON: a recorded cell that differs is another one."""
        return json.dumps({**asdict(self), "settings": self.settings}, sort_keys=True)


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return settings and, in place of those that are tables, what is in them."""
    for key, value in settings.items():
        yield from _flat(value) if isinstance(value, Mapping) else [(key, value)]


MOMENTUM = {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}, "eta": 0.05}
ADAM = {"optimizer": "Adam", "eta": 0.01}


def _everywhere() -> Iterator[Cell]:
    """Further cells that every engine has."""
    for engine in ENGINES:
        yield Cell(engine, "digits", "float64", "lasg-wk2", {**MOMENTUM, "c": 0.03})
        yield Cell(engine, "breast-cancer", "float32", "lasg-pse", {**MOMENTUM, "rho": 1.0})
        yield Cell(engine, "digits", "float32", "lasg-wk2", {**ADAM, "c": 0.03})
        yield Cell(engine, "module", "float32", "laqsg-wk2", {**ADAM, "rho": 0.5}, rounds=FEWER)
        for name in ("lasg-wk1", "lasg-wk2", "laqsg-pse"):
            yield Cell(engine, "digits", "float64", name, {"rho": 0.5, "guard": True})
        yield Cell(engine, "breast-cancer", "float32", "lasg-wk2", {"rho": 2.0, "batch": 0.02})
        yield Cell(engine, "breast-cancer", "float64", "lasg-wk2", {"rho": 0.5, "guard": False})
        yield Cell(engine, "digits", "float64", "lasg-wk2", {"clip": 0.1, "c": 0.003})
        yield Cell(engine, "digits", "float32", "laqsg-wk1", {"clip": 0.1, "c": 0.003})
        yield Cell(engine, "breast-cancer", "float64", "lasg-wk2", {"c_d": 0.02})
        yield Cell(engine, "breast-cancer", "float64", "lasg-pse", {"start": "zero"})
        yield Cell(
            engine,
            "breast-cancer",
            "float64",
            "lasg-wk2",
            {"schedule": "decreasing", "schedule_options": {"mu": 0.05, "K0": 20}},
        )
        for name in ("wk2+qsgd8:512", "wk1+qsgd8:512", "always+qsgd8:512", "lag+qsgd16:64", "pse+qsgd4:64+H2"):
            yield Cell(engine, "digits", "float32", name)
        yield Cell(engine, "module", "float64", "wk2+qsgd8:512", rounds=FEWER)
        yield Cell(engine, "digits", "float32", "lasg-wk2", {"workers": 5})
        yield Cell(engine, "digits", "float64", "laqsg-pse", {"workers": 5})
        yield Cell(engine, "breast-cancer", "float64", "lasg-wk1", {"workers": 3, "rho": 0.7})
        for name in ("lasg-wk2", "laqsg-pse", "local-sgd"):
            yield Cell(engine, "normed", "float32", name, rounds=30)
        for name in ("sgd", "qsgd", "local-sgd", "lasg-wk1", "lasg-wk2", "laqsg-pse"):
            yield Cell(engine, "failing", "float64", name)


def _ways() -> Iterator[Cell]:
    """Cells in which what travels takes other ways than usual."""
    for exchange in ("direct", "scatter", "hub"):
        for name in ("sgd", "lasg-wk2", "laqsg-wk2", "qsgd", "wk2+qsgd16:64"):
            yield Cell("ranks", "digits", "float32", name, exchange=exchange, rounds=FEWER)
    for name in ("lasg-pse", "laqsg-wk2"):
        yield Cell("ranks", "breast-cancer", "float64", name, exchange="hub", hub=1, rounds=FEWER)
    for name in ("sgd", "lasg-wk2", "local-sgd", "qsgd", "laqsg-wk2", "laqsg-pse"):
        yield Cell("federation", "digits", "float32", name, relay=False, rounds=FEWER)


def _loops() -> Iterator[Cell]:
    """Training loops of one's own: every rank is a worker."""
    sgd: dict[str, Any] = {"workers": RANKS, "eta": 0.2}
    for name in ("always+qsgd8:512", "wk2+qsgd8:512"):
        yield Cell(LAZY, "module", "float32", name, {**sgd, "rho": 0.5}, rounds=FEWER)
    yield Cell(
        LAZY, "module", "float32", "wk2+qsgd8:512", {**sgd, "eta": 0.05, "momentum": 0.9, "rho": 0.5}, rounds=FEWER
    )
    yield Cell(LAZY, "module", "float32", "wk2+qsgd8:512", {**sgd, "c": 0.03}, exchange="hub", rounds=FEWER)
    yield Cell(LAZY, "module", "float64", "pse+dense", {**sgd, "c": 0.03}, rounds=FEWER)
    yield Cell(LAZY, "module", "float64", "wk1+dense", {**sgd, "clip": 0.5, "c": 0.005}, rounds=FEWER)


def _cells() -> Iterator[Cell]:
    for engine in ENGINES:
        for problem in PROBLEMS:
            for dtype in DTYPES:
                rounds = FEWER if problem == "module" else ROUNDS
                yield from (Cell(engine, problem, dtype, name, rounds=rounds) for name in ALGORITHMS)
    yield from _everywhere()
    yield from _ways()
    yield from _loops()


CELLS = tuple(_cells())
