"""The figures by name: what each shows, and the runs it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lasg.analysis import link_time
from lasg.analysis.link_model import LinkModel
from lasg.core.algorithms import ALGORITHMS
from lasg.data.sources import TABLE_PREFIXES, is_own
from lasg.errors import LasgError, did_you_mean
from lasg.report import figure_data, paper
from lasg.runs.spec import Spec, folder_name, short_name
from lasg.runs.tasks import SETTINGS, TASKS, task

ITERATIONS = {"ijcnn1-lr": 10_000, "mnist-lr": 10_000, "covtype-lr": 10_000}
"""How far the figures of a task go; others take the task's own number."""
MOST_WORKERS = 6
"""Whose sides of the rule are drawn in one figure."""
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
    network: LinkModel | None = None
    """The links whose seconds it shows."""


def curves(name: str, setting: str, choice: Choice) -> Figure:
    """Loss against iterations, uploads and upload bits (fig:covtype, fig:ijcnn1, fig:mnist, and their _u twins)."""
    neural = task(name).spec("sgd").neural  # has no L_m, which PS needs, and takes its time
    row = [algorithm for algorithm in ALGORITHMS if not (neural and ALGORITHMS[algorithm].rule.name == "ps")]
    seeds = choice.each(1 if neural else 5)
    found = [curve_spec(name, setting, algorithm, seed) for seed in seeds for algorithm in row]
    file = f"{folder_name(short_name(name))}-{setting}"
    return Figure(name=file, kind="curves", title=f"{name}, {setting}", specs=tuple(found))


def training(name: str, setting: str, choice: Choice) -> Figure:
    """Loss and test accuracy of a network against iterations, uploads and bits (fig:NNmnist, _u, _test)."""
    row = [cell.algorithm for cell in paper.cells(1, [name])]
    specs = [paper.neural_spec(name, algorithm, setting, seed) for seed in choice.each(1) for algorithm in row]
    return Figure(name=f"{name}-{setting}", kind="training", title=f"{name}, {setting}", specs=tuple(specs))


TIMED = ("sgd", "lasg-wk1", "lasg-wk2")
"""The series of the figures against total time, besides local SGD."""
PERIODS = (2, 4, 6)
"""Local SGD's H in these figures."""
LINK = link_time.read_link_model("wireless:gradient=0.2")
"""Under which links total time is shown: a gradient of ResNet-18 on 8 images takes one core here about 0.2 s."""


def timed(name: str, setting: str, choice: Choice) -> Figure:
    """Loss and test accuracy against total time (fig:imagenet_train, fig:imagenet_test)."""
    base = task(name).spec("sgd", setting=setting)
    every = base.evaluate if isinstance(base.evaluate, int) else 1
    specs = []
    for seed in choice.each(1):
        specs += [base.but(algorithm=algorithm, seed=seed) for algorithm in TIMED]
        # Evaluated after as many iterations as the others, which is after fewer rounds.
        specs += [base.but(algorithm="local-sgd", seed=seed, H=H, evaluate=max(1, every // H)) for H in PERIODS]
    title = f"{name}, {setting}: time on a shared channel, 20 Mbit/s, 0.2 s a gradient"
    return Figure(name=f"{name}-{setting}", kind="timed", title=title, specs=tuple(specs), network=LINK)


def by_task(name: str, setting: str, choice: Choice) -> Figure:
    """Return the figure of a task."""
    kind = training if name in paper.NEURAL_TASKS else timed if name == "tiny-imagenet" else curves
    return kind(name, setting, choice)


def curve_spec(name: str, setting: str, algorithm: str, seed: int) -> Spec:
    """Return a run of the figures of a task; several figures are drawn from these."""
    base = task(name).spec(algorithm, setting=setting, seed=seed, **paper.PAPER)
    return base.but(iterations=ITERATIONS.get(name, base.iterations))


def toy(choice: Choice) -> list[Figure]:
    """Uploads per 10 iterations: LAG-WK with two values of c, and LASG-WK2 (toyexample)."""
    if choice.task not in {None, *figure_data.TOY_PAIRS}:
        raise LasgError(f"the toy figure is drawn for {' and '.join(figure_data.TOY_PAIRS)}, got --task {choice.task}")
    found = []
    setting = choice.setting or "homogeneous"
    for name, pair in figure_data.TOY_PAIRS.items():
        if choice.task in {None, name}:
            listed = figure_data.toy_specs(name, choice.each(5), 2000, setting)
            specs = [spec for label in (*pair, figure_data.TOY_LASG) for spec in listed[label]]
            title = f"{name}, {setting}: uploads in every 10 iterations"
            found.append(Figure(name=f"toy-{name}", kind="toy", title=title, specs=tuple(specs)))
    return found


def gradients(choice: Choice) -> list[Figure]:
    """Loss against gradient evaluations on covtype (fig:covtype_grad)."""
    setting = choice.setting or "heterogeneous"
    specs = figure_data.gradient_specs(choice.each(5), 2000, setting)
    return [Figure(name="gradients", kind="gradients", title=f"covtype-lr, {setting}", specs=tuple(specs))]


def trials(choice: Choice) -> list[Figure]:
    """Loss and test accuracy on mnist-lr, 30 trials (fig:mnist_train_seed, fig:mnist_test_seed)."""
    name, setting = choice.task or "mnist-lr", choice.setting or "heterogeneous"
    if name.startswith(TABLE_PREFIXES):
        raise LasgError(f"{name} has no test set, so there is no test accuracy to draw")
    specs = [curve_spec(name, setting, algorithm, seed) for seed in choice.each(30) for algorithm in ALGORITHMS]
    return [Figure(name="trials", kind="trials", title=f"{name}, {setting}", specs=tuple(specs))]


def _lazy(kind: str, algorithms: Sequence[str], what: str) -> Callable[[Choice], list[Figure]]:
    """Return a figure of single runs of the algorithms that have a rule."""

    def built(choice: Choice) -> list[Figure]:
        name, setting = choice.task or "covtype-lr", choice.setting or "heterogeneous"
        found = [curve_spec(name, setting, algorithm, choice.first_seed) for algorithm in algorithms]
        # Not a figure of the paper: PSE begins as it does by default.
        specs = [spec.but(start="ask-twice") for spec in found]
        if choice.workers is not None and not 0 < len(choice.workers) <= MOST_WORKERS:
            raise LasgError(f"at most {MOST_WORKERS} workers can be told apart, got {len(choice.workers)}")
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


@dataclass(frozen=True)
class Plain:
    """A figure that is not of one task."""

    summary: str
    build: Callable[[Choice], list[Figure]]
    takes: tuple[str, ...] = ("seeds", "task", "setting")
    """What may be chosen besides the first seed."""


PLAIN: Mapping[str, Plain] = {
    "toy": Plain("uploads per 10 iterations: LAG-WK with two values of c, LASG-WK2", toy),
    "gradients": Plain("loss against gradient evaluations, covtype", gradients, ("seeds", "setting")),
    "trials": Plain("loss and test accuracy over 30 trials, mnist-lr", trials),
    "raster": Plain(
        "who uploads when: a dot an upload",
        _lazy("raster", ("sgd", *LAZY), "who uploads when"),
        ("task", "setting"),
    ),
    "staleness": Plain(
        "how old the gradients are that the server uses",
        _lazy("staleness", LAZY, "age of the gradients"),
        ("task", "setting"),
    ),
    "sides": Plain(
        "both sides of the rule over time",
        _lazy("sides", LAZY, "both sides of the rule"),
        ("task", "setting", "workers"),
    ),
    "networks": Plain("simulated seconds to one loss, for every kind of link", networks),
}
PAPER_TASKS = tuple(ITERATIONS)


def listed() -> dict[str, str]:
    """Return every name that `figures` knows, with what it shows."""
    shown = dict.fromkeys(TASKS, "loss against iterations, uploads and upload bits")
    shown |= dict.fromkeys(paper.NEURAL_TASKS, "loss and test accuracy against iterations, uploads and bits (hours)")
    shown["tiny-imagenet"] = "loss and test accuracy against simulated total time (hours)"
    of_tasks = {f"{name}-{setting}": shown[name] for name in TASKS for setting in SETTINGS}
    return {**of_tasks, **{name: plain.summary for name, plain in PLAIN.items()}}


def figures(name: str, choice: Choice) -> list[Figure]:
    """Return the figures of a name: `all`, a figure, a task (both settings), or a task and setting."""
    if choice.setting not in {None, *SETTINGS}:
        raise LasgError(f"unknown setting {choice.setting!r}: {' or '.join(SETTINGS)}")
    if name == "all":
        _takes(name, choice, "seeds")
        of_tasks = [figure for each in PAPER_TASKS for figure in figures(each, choice)]
        return [*of_tasks, *(figure for plain in PLAIN.values() for figure in plain.build(choice))]
    if name in PLAIN:
        _takes(name, choice, *PLAIN[name].takes)
        return PLAIN[name].build(choice)
    for setting in SETTINGS:
        if name.removesuffix(f"-{setting}") in TASKS and name.endswith(setting):
            _takes(name, choice, "seeds")
            return [by_task(name.removesuffix(f"-{setting}"), setting, choice)]
    if name in TASKS or is_own(name):
        _takes(name, choice, "seeds", "setting")
        return [by_task(name, setting, choice) for setting in SETTINGS if choice.setting in {None, setting}]
    known = [*PLAIN, *TASKS, *listed()]
    raise LasgError(
        f"unknown figure {name!r}.{did_you_mean(name, known)} Known: {', '.join([*PLAIN, *TASKS])}, a task with "
        "-homogeneous or -heterogeneous, or all"
    )


def _takes(name: str, choice: Choice, *options: str) -> None:
    """Refuse what cannot be chosen about a figure."""
    if "seeds" not in options and choice.seeds not in {None, 1}:
        raise LasgError(f"the figure {name} is of one run: --first-seed chooses it, got --seeds {choice.seeds}")
    for option in ("task", "setting", "workers"):
        if option not in options and getattr(choice, option) is not None:
            raise LasgError(f"the figure {name} takes no --{option}, got {getattr(choice, option)!r}")
