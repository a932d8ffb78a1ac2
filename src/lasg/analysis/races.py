"""The races of the scoreboard: who runs, on what, with which trials, and to which loss. One table; no code of its own.

Every contender of a race has the same number of trials over its step sizes, inner and outer. Trials run on a seed that
no result is reported on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lasg.errors import LasgError, did_you_mean
from lasg.runs.spec import Spec
from lasg.runs.tasks import TASKS, task

TUNING_SEED = 100
"""Of the trials; results are reported on the seeds 0, 1, 2, ..."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A method with its trials."""

    name: str
    """What it is called on the scoreboard."""
    algorithm: str
    trials: Sequence[Mapping[str, Any]]
    """Settings to try; the best is reported."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What all its trials share."""

    def spec(self, race: Race, seed: int, trial: Mapping[str, Any], **changes: Any) -> Spec:
        """Return the spec of one run; it is evaluated as often, per gradient, as every other contender's."""
        values = {**race.settings, **self.settings, **trial, **changes}
        made = task(race.task).changed(self.algorithm, race.setting, seed, values)
        return made if race.evaluate is None else made.but(evaluate=max(1, race.evaluate // made.stages.local_steps))


@dataclass(frozen=True, kw_only=True)
class Race:
    """One row of the scoreboard: contenders on a task, to a loss that one of them sets."""

    name: str
    task: str
    setting: str
    contenders: Sequence[Contender]
    reference: str
    """Whose loss is the target, seed by seed: the contender of this name."""
    until: Mapping[str, Any]
    """Where the reference's loss is taken: `iterations`, or `bits` that it may send."""
    limit: int
    """Iterations after which a contender that has not arrived is stopped."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the task's defaults, for all."""
    trial: int | None = None
    """Iterations of a trial; the lowest loss wins. None: trials run to their seed's target; the fewest bits win."""
    evaluate: int | None = None
    """Iterations between two evaluations; None: as the task has it."""

    def __post_init__(self) -> None:
        counts = {len(one.trials) for one in self.contenders}
        if len(counts) != 1:
            raise LasgError(f"race {self.name}: every contender needs the same number of trials, got {sorted(counts)}")

    def contender(self, name: str) -> Contender:
        """Return the contender of a name."""
        known = {one.name: one for one in self.contenders}
        if name not in known:
            raise LasgError(
                f"{name!r} does not run in {self.name}.{did_you_mean(name, known)} Known: {', '.join(known)}"
            )
        return known[name]

    def reference_spec(self, seed: int, trial: Mapping[str, Any]) -> Spec:
        """Return the run whose last loss is the target of a seed."""
        ends = dict(self.until)
        iterations = ends.pop("iterations", self.limit)
        return self.contender(self.reference).spec(self, seed, trial, iterations=iterations, until=ends)


def grid(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return every combination of the values."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


# -- regressions: every step size doubles from trial to trial --------------------------------------------------------

_PRINTED = {"mnist-lr": 1e6, "ijcnn1-lr": 1e5, "covtype-lr": 1e6, "digits": 1e6, "breast-cancer": 1e5}
"""Bits that the paper's tables 3 and 4 give to LAQSG-WK2; of the embedded tasks, about as many rounds' worth."""
_QUANTISED = {"digits": "qsgd8"}
"""The codec of the task's quantised algorithms, where it is not the paper's 4 bits."""


def _regression(name: str, setting: str, limit: int) -> Race:
    """Return the race of a regression: to the loss that LAQSG-WK2, as in the paper, has after its printed bits."""
    eta = task(name).defaults["eta"]
    codec = _QUANTISED.get(name, "qsgd4")
    steps = grid(eta=[eta / 2, eta, 2 * eta, 4 * eta])
    nesterov = {"momentum": 0.9, "nesterov": True}
    paper = Contender(name="laqsg-wk2, as in the paper", algorithm="laqsg-wk2", trials=[{}] * len(steps))
    one_gradient = {
        "sgd": "sgd",
        "qsgd, coded": f"always+{codec}+ec",
        "lasg-wk2": "lasg-wk2",
        "lasg-pse": "lasg-pse",
        "laqsg-wk2, coded": f"wk2+{codec}+ec",
        "laq": "laq",
        "ef21-sgdm": "ef21-sgdm",
        "clag": "clag",
        "lasg-vr": "lasg-vr",
    }
    return Race(
        name=f"{name}-{setting}",
        task=name,
        setting=setting,
        reference=paper.name,
        until={"bits": _PRINTED[name]},
        limit=limit,
        evaluate=10,
        contenders=(
            paper,
            *(Contender(name=shown, algorithm=kind, trials=steps) for shown, kind in one_gradient.items()),
            Contender(name="local-sgd", algorithm="local-sgd", trials=steps),
            Contender(
                name="diloco",
                algorithm="diloco",
                trials=grid(eta=[eta, 2 * eta], outer_eta=[0.3, 0.7]),
                settings={"outer_options": nesterov},
            ),
        ),
    )


# -- networks: four trials each, on short runs -------------------------------------------------------------------------

_MOMENTUM = {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}
_ADAMW = {"optimizer": "AdamW"}
_NESTEROV = {"momentum": 0.9, "nesterov": True}


def _local(H: int, inner: Mapping[str, Any], etas: Sequence[float]) -> tuple[Contender, ...]:
    """Return the contenders that take H local steps per round: two inner steps, two outer ones."""
    averaged, nesterov = grid(eta=etas, outer_eta=[0.7, 1.0]), grid(eta=etas, outer_eta=[0.3, 0.7])
    steps = {**inner, "H": H}
    with_momentum = {**steps, "outer_options": _NESTEROV}
    return (
        Contender(name="local steps, averaged", algorithm=f"always+H{H}+inner", settings=inner, trials=averaged),
        Contender(name="diloco", algorithm="diloco", settings=with_momentum, trials=nesterov),
        Contender(name="sparseloco", algorithm="sparseloco", settings=steps, trials=averaged),
        Contender(name="lasg-local", algorithm="lasg-local", settings=steps, trials=nesterov),
    )


def _cnn(name: str, setting: str, **settings: Any) -> Race:
    """Return a race of the paper's CNN: to the loss that tuned DiLoCo has after 50 rounds of 20 steps."""
    wide = grid(eta=[0.01, 0.02, 0.05, 0.1])
    return Race(
        name=f"mnist-nn-{name}",
        task="mnist-nn",
        setting=setting,
        settings={"measured": 10, **settings},
        reference="diloco",
        until={"iterations": 1000},
        limit=1500,
        trial=300,
        evaluate=60,
        contenders=(
            Contender(name="ddp", algorithm="sgd", settings=_MOMENTUM, trials=wide),
            Contender(name="wk2, 4 bits, coded", algorithm="wk2+qsgd4:512+ec", trials=grid(eta=[0.02, 0.05, 0.1, 0.2])),
            Contender(name="dgc", algorithm="dgc", trials=wide),
            Contender(name="lasg-sparse", algorithm="lasg-sparse", trials=wide),
            *_local(20, _MOMENTUM, (0.01, 0.02)),
        ),
    )


_ROWS = (
    *(
        _regression(name, setting, limit)
        for name, limit in (("mnist-lr", 20_000), ("ijcnn1-lr", 20_000), ("covtype-lr", 20_000))
        for setting in ("homogeneous", "heterogeneous")
    ),
    _regression("digits", "heterogeneous", 3_000),
    _regression("breast-cancer", "heterogeneous", 3_000),
    _cnn("heterogeneous-4", "heterogeneous", workers=4, partition="sorted"),
    _cnn("homogeneous-4", "homogeneous", workers=4),
    _cnn("heterogeneous-10", "heterogeneous"),
    _cnn("homogeneous-10", "homogeneous"),
    Race(
        name="text-lm",
        task="text-lm",
        setting="heterogeneous",
        reference="diloco",
        until={"iterations": 1000},
        limit=1500,
        trial=160,
        evaluate=100,
        contenders=(
            Contender(name="ddp", algorithm="sgd", settings=_ADAMW, trials=grid(eta=[0.001, 0.002, 0.004, 0.008])),
            *_local(20, _ADAMW, (0.001, 0.002)),
        ),
    ),
    Race(
        name="tiny-imagenet",
        task="tiny-imagenet",
        setting="heterogeneous",
        reference="sgd",
        until={"iterations": 96},
        limit=192,
        trial=8,
        evaluate=24,
        contenders=(
            Contender(name="sgd", algorithm="sgd", trials=[{}]),
            Contender(name="local steps, averaged", algorithm="always+H4+inner", trials=[{}]),
            Contender(name="lasg-local", algorithm="lasg-local", settings={"H": 4}, trials=[{}]),
        ),
    ),
)
RACES = {race.name: race for race in _ROWS}


def races(wanted: str) -> list[Race]:
    """Return the races that a text names, separated by commas: races, tasks with all their races, or all."""
    found: dict[str, Race] = {}
    for name in (part.strip() for part in wanted.split(",")):
        listed = {"all": list(RACES), **{one: [r.name for r in _ROWS if r.task == one] for one in TASKS}}
        chosen = [name] if name in RACES else listed.get(name, [])
        if not chosen:
            raise LasgError(
                f"unknown race {name!r}.{did_you_mean(name, [*RACES, *TASKS])} Known: {', '.join(RACES)}; or all"
            )
        found |= {one: RACES[one] for one in chosen}
    return list(found.values())
