"""A run, described completely: a frozen record that round-trips through TOML."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w

from lasg.core.algorithms import Algorithm, Outer, Stages
from lasg.core.clipping import check_norm
from lasg.core.codecs import QSGD
from lasg.core.optimizers import Constant
from lasg.core.server import PAPER_C, RHO, Laziness, check_staleness
from lasg.core.settings import Settings
from lasg.data.sources import Reading, is_own
from lasg.errors import LasgError, did_you_mean
from lasg.runs import composition

BUDGETS = ("iterations", "uploads", "bits", "gradients", "loss")
"""What a run can be stopped on: `bits` are upload bits, `loss` is looked at on every evaluation."""
OWN = "own"
"""As `data` and `partition`: the problem is the caller's own, and no spec can make it."""
HOW_LAZY = ("c", "c_d", "rho")
"""Settings that say how lazy a run is, in one way or another."""
OUTER = ("outer", "outer_eta", "outer_options", "inner_memory", "drift", "qsr")
"""Settings of algorithms whose workers have an optimizer of their own."""
NEURAL_ONLY = ("weights", "batch_norm", "augment", "autocast", "device", "threads", "measured")
"""Settings that only a network has."""


@dataclass(frozen=True, kw_only=True)
class Spec(Settings):
    """Everything that decides a run. Same spec, same run."""

    task: str
    """The name the run goes by; `lasg list tasks` shows the known ones."""
    algorithm: str = field()
    """One of the twelve, or rule+codec+local steps+belief such as wk2+qsgd8+H4+difference: a spec has no default."""
    data: str
    """A data set's name, libsvm:PATH, csv:PATH or images:PATH."""
    label_column: str | None = None
    """csv: the column that holds the classes; absent: the one called target, label or y."""
    scale: bool | None = None
    """libsvm and csv: whether features are standardised and an intercept is added; absent: not."""
    workers: int = 10
    """M."""
    partition: str = "sorted"
    """How samples are dealt to workers: homogeneous, sorted, dirichlet, classes, sizes."""
    alpha: float | None = None
    """dirichlet: small is uneven."""
    classes: int | None = None
    """classes: how many of them a worker has."""
    sizes: tuple[int, ...] | None = None
    """sizes: one per worker."""
    cut: int | None = None
    """sorted: shards end at multiples of it."""
    batch: float = 0.01
    """The minibatch as a share of the worker's shard."""
    lam: float = 1e-5
    """The l2 term is (lam / 2) ||theta||^2."""
    schedule: str = "constant"
    """constant; decreasing, 2 / (mu (k + K0)); or a class of torch.optim.lr_scheduler."""
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "sgd"
    """sgd, or a class of torch.optim: what steps on gradients, at the server, or, below an outer one, the workers'."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    outer: str | None = None
    """The server's optimizer where workers have their own: a class of torch.optim; absent: the algorithm's."""
    outer_eta: float | None = None
    """Its step size; absent: the algorithm's."""
    outer_options: Mapping[str, Any] | None = None
    """Its options; absent: the algorithm's, or none where `outer` is set."""
    inner_memory: Literal["kept", "reset", "averaged"] | None = None
    """What the workers' optimizers have of their momenta of the round before; averaged: the mean of all workers'."""
    drift: float | None = None
    """How much of the drift of local steps is corrected, 0 to 1; absent: nothing."""
    qsr: float | None = None
    """Rounds grow as the workers' step size falls, to (qsr / eta)^2 local steps where that is more; absent: not."""
    H: int = 10
    """Local steps per round; used by local-sgd."""
    bits: int = 4
    """Bits per entry; used by the quantised algorithms."""
    bucket: int | None = None
    """Entries per norm; absent: one norm per vector."""
    smoothness: Literal["paper", "tight"] = "paper"
    """The bound on L_m that lasg-ps uses."""
    dtype: Literal["float32", "float64"] = "float32"
    model: str | None = None
    """A network: mlp, cnn, resnet18, or transformer for text; absent: logistic or softmax regression."""
    weights: str | None = None
    """A network's start: a weight file's name or path; absent: drawn from the seed."""
    batch_norm: Literal["local", "frozen"] | None = None
    """Whose statistics BatchNorm keeps while training: every worker its own (local, the default), or the start's."""
    augment: bool | None = None
    """Whether training images are flipped and shifted at random; absent: not."""
    autocast: Literal["bfloat16", "float16"] | None = None
    """Mixed precision: what a network computes in; absent: in dtype."""
    device: str | None = None
    """Where a network is trained: cpu (the default), cuda, mps."""
    threads: int | None = None
    """How many threads a network's operations take; absent: 1. It may change a run's last digits."""
    iterations: int = 2000
    """The run ends after so many iterations at the latest."""
    until: Mapping[str, float] = field(default_factory=dict)
    """Further ends: uploads, bits, gradients, loss."""
    evaluate: int | Literal["geometric"] = "geometric"
    """Rounds between two evaluations of the loss; geometric: each 10 % later than the one before."""
    measured: int | None = None
    """Networks: loss and accuracy are measured on every so-many-th sample; absent: on all, of text on every eighth."""
    marks: Mapping[str, float] | None = None
    """Further moments of evaluation: when so many uploads, bits or gradients are spent."""
    watch: tuple[int, ...] | None = None
    """Workers whose tau and sides of the rule are kept for every round; absent: the first three."""
    own_rule: Mapping[str, Any] | None = None
    """A rule of the caller's own that `algorithm` names; written by lasg.train."""
    own_codec: Mapping[str, Any] | None = None
    """A codec of the caller's own that `algorithm` names; written by lasg.train."""

    def __post_init__(self) -> None:
        for name, hint in _hints().items():
            object.__setattr__(self, name, _typed(name, hint, getattr(self, name)))
        composition.check(self.algorithm, self.own_rule, self.own_codec)
        for name in ("scale", "marks", "outer_options"):
            if not getattr(self, name):
                object.__setattr__(self, name, None)  # none is none, however it was written
        self._check_outer()
        Constant(self.eta)
        self._choose_laziness()
        check_staleness(self.stages, self.laziness)
        QSGD(bits=self.bits, bucket=self.bucket)
        for name in ("seed", "H", "iterations", "threads", "patience", "measured"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            if value is not None and value < least:
                raise LasgError(f"{name} must be an integer >= {least}, got {value!r}")
        if not 0 < self.batch <= 1:
            raise LasgError(f"batch must be a share of the shard in (0, 1], got {self.batch!r}")
        if not 0 <= self.lam < float("inf"):
            raise LasgError(f"lam must be >= 0 and finite, got {self.lam!r}")
        if isinstance(self.evaluate, int) and self.evaluate < 1:
            raise LasgError(f"evaluate must be a number of rounds >= 1 or 'geometric', got {self.evaluate!r}")
        outside = [m for m in self.watched if not 0 <= m < self.workers]
        if outside:
            raise LasgError(f"watch names workers {outside}, but there are workers 0 to {self.workers - 1} only")
        self.reading.check(self.data)
        self._check_budgets()
        self._check_neural()

    def _choose_laziness(self) -> None:
        """Say how lazy a run is that does not say it: as the paper's on lasg's own tasks, else safely."""
        if self.rho is not None and (self.c is not None or self.c_d is not None):
            raise LasgError("rho and c (or c_d) both say how lazy a run is: set one of them")
        if self.rho is None and self.c is None:
            for name, value in self.usual_laziness().items():
                object.__setattr__(self, name, value)

    def usual_laziness(self) -> dict[str, float]:
        """How lazy a run is that does not say it."""
        plain = self.optimizer == "sgd" or (self.optimizer == "SGD" and not self.optimizer_options.get("momentum"))
        papers = plain and self.data != OWN and not is_own(self.data)
        return {"c": PAPER_C} if papers or self.c_d is not None else {"rho": RHO}

    @property
    def how_lazy(self) -> dict[str, float]:
        """What of `HOW_LAZY` is set."""
        return {name: value for name in HOW_LAZY if (value := getattr(self, name)) is not None}

    @property
    def laziness(self) -> Laziness:
        """The constants of the rules."""
        return self.laziness_of(self.workers)

    def _check_outer(self) -> None:
        """Refuse settings of an outer optimizer, or of the workers' own, where the algorithm has none."""
        if self.composition.outer is None:
            given = [name for name in OUTER if getattr(self, name) is not None]
            if given:
                raise LasgError(
                    f"{given[0]} is for algorithms whose workers have an optimizer of their own, which "
                    f"{self.algorithm} has not: diloco has, or always+H20+inner"
                )
        if self.outer_eta is not None:
            Constant(self.outer_eta)
        self.stages  # noqa: B018 (refuses what makes no sense)

    def _check_budgets(self) -> None:
        for name in ("until", "marks"):
            budgets = getattr(self, name)
            if budgets is not None:
                object.__setattr__(self, name, {kind: check_budget(kind, value) for kind, value in budgets.items()})
        for kind in [kind for kind in self.marks or {} if kind not in {"uploads", "bits", "gradients"}]:
            raise LasgError(f"marks are uploads, bits or gradients, got {kind}")
        if "iterations" in self.until:
            raise LasgError("iterations is a key of its own, not one of until")

    def _check_neural(self) -> None:
        if self.clip is not None:
            check_norm(self.clip)
        only = [name for name in NEURAL_ONLY if not self.neural and getattr(self, name) is not None]
        if only:
            raise LasgError(f"{only[0]} is a network's setting, and the run has no model: set model, or leave it out")

    def but(self, **changes: Any) -> Spec:
        """Return a copy with some fields changed, checked as on construction.

        rho takes the place of c, and c of rho. Where neither is changed, a spec as lazy as usual has a copy that is so.
        """
        values = self.to_dict()
        if any(changes.get(name) is not None for name in HOW_LAZY) or self.how_lazy == self.usual_laziness():
            values = {name: value for name, value in values.items() if name not in HOW_LAZY}
        return from_dict({**values, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as TOML values; those that are None are left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return {k: dict(v) if isinstance(v, Mapping) else v for k, v in plain.items() if v is not None}

    def to_toml(self) -> str:
        """Return the spec as TOML text."""
        values = {k: v for k, v in self.to_dict().items() if v != {}}
        return tomli_w.dumps({k: v for k, v in values.items() if not isinstance(v, dict)} | values)

    @property
    def composition(self) -> Algorithm:
        """The algorithm: rule x codec x local work. Of the caller's own, only what a reader must know."""
        return composition.restore(self.algorithm, self.own_rule, self.own_codec)

    @property
    def stages(self) -> Stages:
        """One choice per stage of a round."""
        stages = self.composition.stages(bits=self.bits, bucket=self.bucket, H=self.H, inner=self._inner)
        return stages if self.robust is None else replace(stages, robust=self.robust)  # type: ignore[arg-type]

    @property
    def _inner(self) -> dict[str, Any]:
        """What the workers' own optimizers are, where the algorithm gives them any."""
        name = "SGD" if self.optimizer == "sgd" else self.optimizer
        given = {"optimizer": name, "eta": self.eta, "options": self.optimizer_options, "schedule": self.schedule}
        given |= {"schedule_options": self.schedule_options, "memory": self.inner_memory, "drift": self.drift}
        given |= {} if self.qsr is None else {"qsr": self.qsr, "total": self.iterations}
        return {key: value for key, value in given.items() if value is not None}

    @property
    def server_optimizer(self) -> Outer:
        """The server's optimizer: the algorithm's own, as changed here, or the one that steps on gradients."""
        chosen = self.composition
        if chosen.outer is None:
            own = Outer(self.optimizer, self.eta, self.optimizer_options)
            return own if chosen.server is None else replace(chosen.server, eta=self.eta)
        eta = chosen.outer.eta if self.outer_eta is None else self.outer_eta
        options = self.outer_options or ({} if self.outer else chosen.outer.options)  # another one has its own
        return Outer(self.outer or chosen.outer.name, eta, options)

    @property
    def own_parts(self) -> tuple[str, ...]:
        """Which parts of the run only the caller's program has: of problem, rule and codec."""
        parts = {"problem": self.data == OWN, "rule": self.own_rule, "codec": self.own_codec}
        return tuple(name for name, own in parts.items() if own)

    @property
    def reading(self) -> Reading:
        """How the user's own data are read."""
        return Reading(label_column=self.label_column, scale=bool(self.scale))

    @property
    def watched(self) -> tuple[int, ...]:
        """The workers that the trace watches."""
        return tuple(range(min(3, self.workers))) if self.watch is None else self.watch

    @property
    def neural(self) -> bool:
        """Whether a neural network is trained: one by name, or the caller's own module."""
        return self.model is not None or self.data == OWN

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits that tell this spec from others."""
        text = json.dumps(self.to_dict(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def label(self) -> str:
        """A name for folders: task, partition, algorithm, seed, digest."""
        return f"{self.family}-{folder_name(self.algorithm)}-seed{self.seed}-{self.digest}"

    @property
    def family(self) -> str:
        """What the labels of all runs on this task and partition begin with."""
        return folder_name(f"{short_name(self.task)}-{self.partition}")


def short_name(name: str) -> str:
    """Return a task's name for titles and files: of the user's own data the file's, without its folders."""
    return Path(name.partition(":")[2]).name if is_own(name) else name


def folder_name(name: str) -> str:
    """Return a name with only what every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def check_budget(kind: str, value: float) -> float:
    """Return a budget as one of equal numbers, so that 1000 and 1e3 are one run; refuse one that no run can end on."""
    if kind not in BUDGETS:
        raise LasgError(f"unknown budget {kind!r}: a run can end on {', '.join(BUDGETS)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise LasgError(f"the budget {kind} must be a positive number, got {value!r}")
    return float(value) if kind == "loss" or value != int(value) else int(value)


def with_budget(spec: Spec, kind: str, value: float) -> Spec:
    """Return the spec with one more end; `iterations` is the cap itself."""
    check_budget(kind, value)
    if kind == "iterations":
        if value != int(value):
            raise LasgError(f"the budget iterations must be a whole number, got {value!r}")
        return replace(spec, iterations=int(value))
    return replace(spec, until={**spec.until, kind: value})


def from_dict(values: Mapping[str, Any]) -> Spec:
    """Build a spec from TOML values; unknown or ill-typed keys are errors that list what is valid."""
    hints = _hints()
    unknown = [key for key in values if key not in hints]
    if unknown:
        hint = did_you_mean(unknown[0], hints)
        raise LasgError(f"unknown key {unknown[0]!r}.{hint} Valid keys: {', '.join(hints)}")
    missing = [key for key in ("task", "algorithm", "data") if key not in values]
    if missing:
        raise LasgError(f"a run needs the key {missing[0]!r}. Valid keys: {', '.join(hints)}")
    return Spec(**values)


@functools.cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Spec)


def from_toml(text: str) -> Spec:
    """Build a spec from TOML text."""
    try:
        return from_dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise LasgError(f"not valid TOML: {error}") from None


def read(path: Path | str) -> Spec:
    """Read a spec from a TOML file."""
    try:
        return from_toml(Path(path).read_text(encoding="utf-8"))
    except LasgError as error:
        raise LasgError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LasgError(f"cannot read the spec {path}: {error}") from None


def _typed(key: str, hint: Any, value: Any) -> Any:
    """Check one value against its annotation; an int serves as a float, a list as a tuple."""
    options = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    for option in options:
        origin = get_origin(option)
        if origin is Literal and isinstance(value, str) and value in get_args(option):
            return value
        if origin is tuple and isinstance(value, list | tuple) and all(_is_int(v) for v in value):
            return tuple(value)
        if origin is Mapping and isinstance(value, Mapping):
            return _plain(value)
        if option is float and (_is_int(value) or isinstance(value, float)):
            return float(value)
        if origin is None and isinstance(value, option) and isinstance(value, bool) == (option is bool):
            return value
    wanted = " or ".join(_describe(option) for option in options if option is not type(None))
    raise LasgError(f"{key} must be {wanted}, got {value!r}")


def _plain(value: Any) -> Any:
    """Return nested values as TOML gives them back: lists for tuples."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _describe(option: Any) -> str:
    if get_origin(option) is Literal:
        return " or ".join(repr(value) for value in get_args(option))
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    return names.get(option) or ("a list of integers" if get_origin(option) is tuple else "a table")
