"""What a federation is told in `[tool.flwr.app.config]`, in its pyproject.toml: server and nodes read the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lasg.core import codecs
from lasg.core.codecs import Codec
from lasg.core.optimizers import Constant
from lasg.core.rules import RULES, Rule
from lasg.core.server import RHO, Laziness, laziness_of
from lasg.errors import LasgError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings by their names, with - for _."""

    workers: int = 0
    """How many workers; their keys are then 0, 1, 2, ..., which Flower calls partition-id."""
    keys: str = ""
    """Or their names, with commas: a node says its own as `worker` in its node config."""
    rounds: int = 100
    rule: str = "always"
    codec: str = "qsgd8:512"
    eta: float = 0.05
    local_steps: int = 1
    rho: float = RHO
    """How lazy a lazy rule is: the bound on the aggregate's relative error. The guard watches it."""
    c: float = -1.0
    """The paper's constant, in place of rho and without the guard; below 0: none."""
    D: int = 50
    window: int = 10
    seed: int = 0
    clip: float = 0.0
    """The largest norm of a gradient; 0 is no limit."""
    deadline: float = 60.0
    """Seconds that a round waits for answers."""
    wait: float = 300.0
    """Seconds that the server waits for all workers to come at the start."""
    away: str = "keep"
    """What becomes of the contribution of a worker that is away: keep, drop, or stop the run."""
    away_after: int = 0
    """Rounds without an answer after which a worker is away; 0 is D."""
    norm_bound: float = 0.0
    """The largest norm of a contribution that is believed; 0 is no limit."""
    relay: bool = True
    """Whether nodes are told what changed the model, where that is shorter than the model."""
    evaluate_every: int = 1
    out: str = "federation"
    """The server's folder: its checkpoint, the trace, the model."""
    resume: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Settings:
        """Read the settings of lasg among those of an app."""
        found: dict[str, Any] = {}
        for one in fields(cls):
            name = one.name.replace("_", "-")
            if name not in config:
                continue
            value, kind = config[name], type(one.default)
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not kind:
                raise LasgError(f"{name} must be a {kind.__name__}, got {value!r}")
            found[one.name] = value
        return cls(**found)

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise LasgError(f"unknown rule {self.rule!r}: one of {', '.join(RULES)}")
        if not self.names:
            raise LasgError('say how many workers there are (workers = 4), or their names (keys = "north, south")')
        for name in ("rounds", "local_steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise LasgError(f"{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if not self.deadline > 0:
            raise LasgError(f"deadline must be a number of seconds, got {self.deadline}")
        codecs.parse(self.codec)
        Constant(self.eta)
        self.laziness  # noqa: B018 (refuses what no server takes)

    @property
    def names(self) -> list[str]:
        """The workers' keys, in their order."""
        given = [name.strip() for name in self.keys.split(",") if name.strip()]
        return given or [str(m) for m in range(self.workers)]

    @property
    def laziness(self) -> Laziness:
        """The constants of the rules."""
        rho, c = (self.rho, None) if self.c < 0 else (None, self.c)
        return laziness_of(len(self.names), rho=rho, c=c, D=self.D, window=self.window)

    @property
    def shared(self) -> dict[str, Any]:
        """What both sides build their workers from."""
        chosen: Rule = RULES[self.rule]
        codec: Codec = codecs.parse(self.codec)
        return {"rule": chosen, "codec": codec, "local_steps": self.local_steps, "seed": self.seed}

    @property
    def bound(self) -> float:
        """The largest norm of a contribution."""
        return self.norm_bound or math.inf
