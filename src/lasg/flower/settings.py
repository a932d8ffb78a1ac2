"""What a federation is told in `[tool.flwr.app.config]`, in its pyproject.toml: server and nodes read the same.

What it trains and how is a spec, as of any run, with the same names and defaults; Flower's values cannot be absent, so
here 0, a negative number or an empty word says that something is not set. Options are a table of their own, such as
`[tool.flwr.app.config.optimizer-options]`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from lasg.core.algorithms import BITS, BUCKET, Stages, algorithm
from lasg.core.composition_names import composition_name
from lasg.core.rules import RULES
from lasg.core.server import RHO, Laziness
from lasg.core.settings import Settings as Shared
from lasg.errors import LasgError
from lasg.runs.spec import OUTER, OWN, Spec
from lasg.transports.membership import Admission

ROBUST = "median-clip3"
"""The bound on a worker's influence that serves unless another is chosen: see docs/security.md."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings by their names, with - for _."""

    workers: int = 0
    """How many workers; their keys are then 0, 1, 2, ..., which Flower calls partition-id."""
    keys: str = ""
    """Or their names, with commas: a node says its own as `worker` in its node config."""
    task: str = "federation"
    """What the stored run is called."""
    rounds: int = 100
    algorithm: str = ""
    """An algorithm by its name, in place of rule, codec and local-steps."""
    rule: str = "always"
    codec: str = "qsgd8:512"
    local_steps: int = 1
    eta: float = Shared.eta
    optimizer: str = Spec.optimizer
    """What steps on gradients: at the nodes where the algorithm has an outer optimizer, as lasg-local has, else at the
    server."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = Spec.schedule
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    outer: str = ""
    """The server's optimizer where the nodes have their own; empty: the algorithm's."""
    outer_eta: float = 0.0
    """Its step size; 0: the algorithm's."""
    outer_options: Mapping[str, Any] = field(default_factory=dict)
    """Its options; none: the algorithm's."""
    inner_memory: str = ""
    """What the nodes' own optimizers have of their momenta from round to round: kept (the default), reset, averaged."""
    drift: float = 0.0
    """How much of the drift of local steps is corrected, 0 to 1."""
    qsr: float = 0.0
    """As a spec's: rounds grow as the step size falls; 0: they have local-steps steps."""
    rho: float = RHO
    """How lazy a lazy rule is: the bound on the aggregate's relative error. The guard watches it."""
    c: float = -1.0
    """The paper's constant, in place of rho and without the guard; below 0: none."""
    D: int | float = Shared.D
    variance_bound: float = -1.0
    """Theta of fda; below 0: that of the first ten rounds, measured."""
    window: int = Shared.window
    seed: int = Shared.seed
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
    robust: str = ""
    """What bounds how much one worker adds: median-clip3, trimmed, none; empty: the algorithm's, or `ROBUST`."""
    bind: str = ""
    """node: a worker's key belongs to the first node that says it; key: to whoever says it while nobody else has it;
    empty: node, but key in Flower's simulation engine, whose nodes are this machine's own."""
    nodes: str = ""
    """The workers' nodes by their numbers, with commas, in the workers' order; empty: see bind."""
    samples: str = ""
    """How many samples each worker counts for, with commas; empty: what it says, bounded by what the others say."""
    norm_bound: float = 0.0
    """The largest norm of a contribution that is believed; 0 is no limit."""
    relay: bool = True
    """Whether nodes are told what changed the model, where that is shorter than the model."""
    evaluate_every: int = 1
    out: str = "federation"
    """The server's folder: its checkpoint, the trace, the model."""
    track: str = ""
    """Where the server's numbers go as they come, with commas: csv=FILE, tensorboard=FOLDER, wandb, mlflow, trackio."""
    resume: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Read the settings of lasg among those of an app."""
        values: dict[str, Any] = {}
        for one in fields(cls):
            name = one.name.replace("_", "-")
            if one.default is MISSING:  # a table, of which Flower makes names with a dot
                if name in config:
                    raise LasgError(f"{name} is a table, [tool.flwr.app.config.{name}], got {config[name]!r}")
                start = f"{name}."
                options = {key.removeprefix(start): value for key, value in config.items() if key.startswith(start)}
                values[one.name] = {key.replace("-", "_"): value for key, value in options.items()}
                continue
            if name not in config:
                continue
            value, kind = config[name], type(one.default)
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not kind and not (name == "D" and value == math.inf):
                raise LasgError(f"{name} must be a {kind.__name__}, got {value!r}")
            values[one.name] = value
        return cls(**values)

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
        self.spec  # noqa: B018 (refuses what no run takes)
        self.admission.check(self.names)

    @property
    def names(self) -> list[str]:
        """The workers' keys, in their order."""
        given = [name.strip() for name in self.keys.split(",") if name.strip()]
        return given or [str(m) for m in range(self.workers)]

    @property
    def admission(self) -> Admission:
        """Who may be which worker, and how much it counts for."""
        numbers = {name: _integers(name, getattr(self, name)) for name in ("nodes", "samples")}
        return Admission(bind=self.bind or "node", **numbers)  # type: ignore[arg-type]

    @property
    def stages(self) -> Stages:
        """What both sides build their workers from."""
        return self.spec.stages

    @functools.cached_property
    def spec(self) -> Spec:
        """The run, as it is stored: its data are the nodes'."""
        given = (self.rule, self.codec) != (Settings.rule, Settings.codec)
        if self.algorithm and given:
            raise LasgError("an algorithm's name says its rule and codec: set the one or the others")
        name = self.algorithm or composition_name(self.rule, self.codec, self.local_steps)
        chosen = algorithm(name)
        if self.algorithm and self.local_steps > 1 and not chosen.local:
            raise LasgError(
                f"an algorithm's name says its local steps: {self.algorithm}+H{self.local_steps}, for example"
            )
        how_lazy: dict[str, Any] = {"rho": self.rho} if self.c < 0 else {"c": self.c}
        how_lazy |= {} if self.variance_bound < 0 else {"variance_bound": self.variance_bound}
        outer: dict[str, Any] = {name: getattr(self, name) or None for name in OUTER}
        robust = self.robust or (ROBUST if chosen.robust is None else None)
        alike = ("eta", "D", "window", "seed", "optimizer", "optimizer_options", "schedule", "schedule_options")
        return Spec(
            task=self.task,
            algorithm=name,
            data=OWN,
            partition=OWN,
            workers=len(self.names),
            iterations=self.rounds * chosen.local_steps(self.local_steps),
            bits=BITS,
            bucket=BUCKET,
            H=self.local_steps,
            evaluate=self.evaluate_every,
            clip=self.clip or None,
            robust=robust,
            **{name: getattr(self, name) for name in alike},
            **outer,
            **how_lazy,
        )

    @property
    def laziness(self) -> Laziness:
        """The constants of the rules."""
        return self.spec.laziness


def _integers(name: str, text: str) -> tuple[int, ...]:
    """Return numbers with commas between them."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.lstrip("-").isdecimal() for word in words):
        raise LasgError(f"{name} must be whole numbers with commas between them, got {text!r}")
    return tuple(int(word) for word in words)
