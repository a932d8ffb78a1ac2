"""The figures by name: what each shows, and the runs it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError, did_you_mean
from lasg.experiments import paper
from lasg.experiments.spec import Spec
from lasg.experiments.tasks import SETTINGS, TASKS, task

ITERATIONS = {"ijcnn1-lr": 10_000, "mnist-lr": 10_000, "covtype-lr": 10_000}
"""How far the figures of a task go; others take the task's own number."""
LAZY = ("lag-wk", "lasg-wk1", "lasg-wk2", "lasg-ps", "lasg-pse")
"""The algorithms that have a rule."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a user may choose about a figure."""

    seeds: int | None = None
    """How many; None: the figure's own number."""
    first_seed: int = 0
    task: str | None = None
    setting: str | None = None
    workers: tuple[int, ...] | None = None
    """Whose sides of the rule are drawn."""

    def each(self, own: int) -> range:
        """Return the seeds, `own` of them unless chosen otherwise."""
        return range(self.first_seed, self.first_seed + (self.seeds or own))


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure: its kind, and its runs."""

    name: str
    kind: str
    """Which drawing: see `lasg.report.plots`."""
    title: str
    specs: tuple[Spec, ...]


def curves(name: str, setting: str, choice: Choice) -> Figure:
    """Loss against iterations, uploads and upload bits (fig:covtype, fig:ijcnn1, fig:mnist, and their _u twins)."""
    found = [curve_spec(name, setting, algorithm, seed) for seed in choice.each(5) for algorithm in ALGORITHMS]
    title = f"{name}, {setting}"
    return Figure(name=f"{name}-{setting}", kind="curves", title=title, specs=tuple(found))


def curve_spec(name: str, setting: str, algorithm: str, seed: int) -> Spec:
    """Return a run of the figures of a task; several figures are drawn from these."""
    base = task(name).spec(algorithm, setting=setting, seed=seed, **paper.PAPER)
    return base.but(iterations=ITERATIONS.get(name, base.iterations))


def toy(choice: Choice) -> list[Figure]:
    """Uploads per 10 iterations: LAG-WK with two values of c, and LASG-WK2 (toyexample)."""
    found = []
    for name, pair in paper.TOY_PAIRS.items():
        if choice.task in {None, name}:
            listed = paper.toy_specs(name, choice.each(5), 2000, choice.setting or "homogeneous")
            specs = [spec for label in (*pair, paper.TOY_LASG) for spec in listed[label]]
            title = f"{name}, {choice.setting or 'homogeneous'}: uploads in every 10 iterations"
            found.append(Figure(name=f"toy-{name}", kind="toy", title=title, specs=tuple(specs)))
    return found


def gradients(choice: Choice) -> list[Figure]:
    """Loss against gradient evaluations on covtype (fig:covtype_grad)."""
    setting = choice.setting or "heterogeneous"
    specs = paper.gradient_specs(choice.each(5), 2000, setting)
    return [Figure(name="gradients", kind="gradients", title=f"covtype-lr, {setting}", specs=tuple(specs))]


def trials(choice: Choice) -> list[Figure]:
    """Loss and test accuracy on mnist-lr, 30 trials (fig:mnist_train_seed, fig:mnist_test_seed)."""
    name, setting = choice.task or "mnist-lr", choice.setting or "heterogeneous"
    specs = [curve_spec(name, setting, algorithm, seed) for seed in choice.each(30) for algorithm in ALGORITHMS]
    return [Figure(name="trials", kind="trials", title=f"{name}, {setting}", specs=tuple(specs))]


def _lazy(kind: str, algorithms: Sequence[str], what: str) -> Callable[[Choice], list[Figure]]:
    """Return a figure of single runs of the algorithms that have a rule."""

    def built(choice: Choice) -> list[Figure]:
        name, setting = choice.task or "covtype-lr", choice.setting or "heterogeneous"
        found = [curve_spec(name, setting, algorithm, choice.first_seed) for algorithm in algorithms]
        # Not a figure of the paper: PSE begins as it does by default.
        specs = [spec.but(start="ask-twice") for spec in found]
        if choice.workers is not None:
            specs = [spec.but(watch=choice.workers) for spec in specs]
        title = f"{name}, {setting}, seed {choice.first_seed}: {what}"
        return [Figure(name=kind, kind=kind, title=title, specs=tuple(specs))]

    return built


def networks(choice: Choice) -> list[Figure]:
    """Simulated seconds to one loss, for every kind of link."""
    name, setting = choice.task or "mnist-lr", choice.setting or "heterogeneous"
    figure = curves(name, setting, choice)
    return [Figure(name="networks", kind="networks", title=f"{name}, {setting}", specs=figure.specs)]


PLAIN: Mapping[str, tuple[str, Callable[[Choice], list[Figure]]]] = {
    "toy": ("uploads per 10 iterations: LAG-WK with two values of c, LASG-WK2", toy),
    "gradients": ("loss against gradient evaluations, covtype", gradients),
    "trials": ("loss and test accuracy over 30 trials, mnist-lr", trials),
    "raster": ("who uploads when: a dot an upload", _lazy("raster", ("sgd", *LAZY), "who uploads when")),
    "staleness": ("how old the gradients are that the server uses", _lazy("staleness", LAZY, "age of the gradients")),
    "sides": ("both sides of the rule over time", _lazy("sides", LAZY, "both sides of the rule")),
    "networks": ("simulated seconds to one loss, for every kind of link", networks),
}
"""The figures that are not of one task: what they show, and how they are made."""
PAPER_TASKS = tuple(ITERATIONS)


def listed() -> dict[str, str]:
    """Return every name that `figures` knows, with what it shows."""
    shown = "loss against iterations, uploads and upload bits"
    by_task = {f"{name}-{setting}": shown for name in TASKS for setting in SETTINGS}
    return {**by_task, **{name: summary for name, (summary, _) in PLAIN.items()}}


def figures(name: str, choice: Choice) -> list[Figure]:
    """Return the figures of a name: `all`, a figure, a task (both settings), or a task and setting."""
    if name == "all":
        return [figure for each in (*PAPER_TASKS, *PLAIN) for figure in figures(each, choice)]
    if name in PLAIN:
        return PLAIN[name][1](choice)
    for setting in SETTINGS:
        if name.removesuffix(f"-{setting}") in TASKS and name.endswith(setting):
            return [curves(name.removesuffix(f"-{setting}"), setting, choice)]
    if name in TASKS or name.startswith("libsvm:"):
        return [curves(name, setting, choice) for setting in SETTINGS if choice.setting in {None, setting}]
    known = [*PLAIN, *TASKS, *listed()]
    raise LasgError(
        f"unknown figure {name!r}.{did_you_mean(name, known)} Known: {', '.join([*PLAIN, *TASKS])}, a task with "
        "-homogeneous or -heterogeneous, or all"
    )
