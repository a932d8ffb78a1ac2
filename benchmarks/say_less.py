"""Bits to a loss: what lasg's algorithms need beside the paper's, on regressions and networks, seed by seed.

    python benchmarks/say_less.py regressions --data-dir DIR    # to the loss that LAQSG-WK2 has after its printed bits
    python benchmarks/say_less.py network --data-dir DIR        # mnist-nn, heterogeneous, to SGD's loss of .089
    python benchmarks/say_less.py drop-in --data-dir DIR        # beside DistributedDataParallel, the same steps
    python benchmarks/say_less.py blocks --data-dir DIR         # whole vectors beside blocks, digits, a network

Each goes on where it was stopped: finished rows are in results/say-less-*.csv, and the table is printed from them.
Bits are those of the messages, 8 x their bytes; `coder` is the format of the entropy coder that made them. `down` is
what all workers receive: every message of every other worker, or the model in every round, whichever is less.
`--seeds 1 --quick` is a small try. `regressions --again` runs LAQSG-WK2, coded, again where another coder made the row.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lasg.core.algorithms import Outer, algorithm
from lasg.core.entropy import FORMAT
from lasg.core.optimizers import ClosedFormSGD, Constant, TorchOptimizer
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.data.loaders import load
from lasg.data.partition import split
from lasg.problems.module import ModuleProblem
from lasg.runs import factories
from lasg.runs.tasks import task

RESULTS = Path(__file__).parent.parent / "results"
Row = dict[str, Any]

# -- regressions -------------------------------------------------------------------------------------------------

BUDGETS = {"mnist-lr": 1e6, "ijcnn1-lr": 1e5, "covtype-lr": 1e6}
"""Bits that the paper's tables 3 and 4 give to LAQSG-WK2."""
REGRESSIONS = ("wk2+qsgd4+ec", "lasg-vr", "always+grid0.25+ec+difference+storm")
"""Coded alone; with variance reduction; the same without a trigger."""
SETTINGS = ("homogeneous", "heterogeneous")


def regression_cases(seeds: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Every task, setting and seed."""
    return ((name, setting, seed) for name in BUDGETS for setting in SETTINGS for seed in seeds)


def regression_rows(case: tuple[Any, ...], data_dir: str, quick: bool) -> Iterator[Row]:
    """Run LAQSG-WK2 to its budget, then the others to the loss that it has."""
    name, setting, seed = case
    spec = task(name).spec("laqsg-wk2", setting=setting, seed=seed)
    problem = factories.problem(spec, data_dir)
    base = factories.training(spec, problem)
    budget = BUDGETS[name] / (10 if quick else 1)
    while base.ledger.bits_up < budget:
        base.step()
    target = base.loss()
    row = {"task": name, "setting": setting, "seed": seed, "target": f"{target:.6f}"}
    yield row | result("laqsg-wk2", base, target)
    sgd = factories.training(spec.but(algorithm="sgd"), problem)
    run_to(sgd, target, every=10, rounds=100_000)
    yield row | result("sgd", sgd, target)
    for other in REGRESSIONS:
        training = factories.training(spec.but(algorithm=other), problem)
        limit = base.ledger.rounds if other.startswith("wk2") else 3 * sgd.ledger.rounds
        run_to(training, target, every=10, rounds=limit, stop=not other.startswith("wk2"))
        yield row | result(other, training, target)


def coded_again(row: Row, done: list[Row], data_dir: str) -> Row:
    """Return the row of LAQSG-WK2, coded by the present coder: as many rounds as before, so the same models."""
    (base,) = (other for other in done if (other["case"], other["algorithm"]) == (row["case"], "laqsg-wk2"))
    spec = task(row["task"]).spec(row["algorithm"], setting=row["setting"], seed=int(row["seed"]))
    training = factories.training(spec, factories.problem(spec, data_dir))
    run_to(training, 0, every=10, rounds=int(base["rounds"]), stop=False)
    return row | result(row["algorithm"], training, float(base["target"]), round(training.loss(), 6))


def run_to(training: Training, target: float, *, every: int, rounds: int, stop: bool = True) -> None:
    """Take steps until the loss is reached, looked at every so many rounds, or so many rounds are over."""
    while training.ledger.rounds < rounds:
        for _ in range(min(every, rounds - training.ledger.rounds)):
            training.step()
        if stop and training.loss() <= target:
            return


def result(name: str, training: Training, target: float, loss: float | None = None) -> Row:
    """Return what a training has spent."""
    ledger, workers = training.ledger, training.server.laziness.workers
    loss = training.loss() if loss is None else loss
    return {
        "algorithm": name,
        "loss": f"{loss:.6f}",
        "reached": loss <= target,
        "rounds": ledger.rounds,
        "gradients": ledger.gradients,
        "uploads": ledger.uploads,
        "bits_up": ledger.bits_up,
        "bits_down": min(ledger.bits_down, (workers - 1) * ledger.bits_up),
        "coder": FORMAT,
    }


# -- mnist-nn ----------------------------------------------------------------------------------------------------

TARGET = 0.089
NETWORK: dict[str, dict[str, Any]] = {
    "sgd": {"eta": 0.05},
    "always+topk0.002+ec+residual+correction0.9": {"eta": 0.02},
    "always+topk0.01+ec+residual+correction0.9": {"eta": 0.02},
    "always+topk0.002+ec+residual+inner+H4": {"eta": 0.05},
    "wk2+qsgd4:512+ec": {"eta": 0.05},
}
"""Algorithms, and their steps."""


def network_cases(seeds: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Every algorithm and seed."""
    return ((name, seed) for seed in seeds for name in NETWORK)


def network_rows(case: tuple[Any, ...], data_dir: str, quick: bool) -> Iterator[Row]:
    """Train until the loss over all samples is reached; a sample of them says when to look."""
    name, seed = case
    spec = task("mnist-nn").spec(name, seed=seed, **NETWORK[name])
    problem = factories.problem(spec, data_dir)
    assert isinstance(problem, ModuleProblem)
    training = factories.training(spec, problem)
    rows = np.random.default_rng(0).choice(problem.samples, 6_000, replace=False)
    every, limit = max(1, 25 // training.stages.local_steps), 20 if quick else 1600
    loss = np.inf
    while training.ledger.rounds < limit:
        for _ in range(every):
            training.step()
        if problem.loss(training.theta, rows) < TARGET * 1.05:
            loss = training.loss()
            if loss <= TARGET:
                break
    loss = training.loss() if not np.isfinite(loss) else loss
    row = {"seed": seed, "eta": spec.eta, "accuracy": f"{training.accuracy():.4f}"}
    yield row | result(name, training, TARGET, loss)


# -- a drop-in for DistributedDataParallel ---------------------------------------------------------------------------

STEPS = {"cnn": 561, "text-lm": 400}
"""Gradients per worker: three epochs of 12,000 images at 64 per step; of the text, 16 windows per worker and step."""
MOMENTUM = {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}
ADAMW = {"optimizer": "AdamW"}
SPARSE, SPARSE_2BIT = "always+topk0.01:warm100+ec+residual", "always+topk0.01:2bit:warm100+ec+residual"
EIGHT = "always+grid0.25+ec+residual+inner+H8"
FOUR = {"algorithm": "lasg-grid-local", "H": 4}
SHORT = {"optimizer": "AdamW", "optimizer_options": {"betas": (0.6, 0.99)}}
"""AdamW that remembers less: on text-lm better for DistributedDataParallel, too."""
DROP_IN: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("text-lm", "adamw"): {
        "four steps": {**FOUR, **SHORT},
        "ddp, short memory": {"algorithm": "sgd", **SHORT},
        "four steps, momentum .2": {**FOUR, **SHORT, "outer": {"momentum": 0.2, "nesterov": True}, "once": True},
        "ddp": {"algorithm": "sgd", **ADAMW, "once": True},
        "eight steps": {"algorithm": EIGHT, **ADAMW, "once": True},
        "ddp, eta 0.002": {"algorithm": "sgd", **ADAMW, "eta": 0.002, "once": True},
        "own step": {"algorithm": f"{SPARSE}+inner", **ADAMW, "eta": 0.002, "once": True},
        "own step, 2 bits": {"algorithm": f"{SPARSE_2BIT}+inner", **ADAMW, "eta": 0.002, "once": True},
    },
    ("text-lm", "momentum"): {
        "ddp": {"algorithm": "sgd", **MOMENTUM},
        "eight steps": {"algorithm": EIGHT, **MOMENTUM},
    },
    ("cnn", "momentum"): {
        "ddp": {"algorithm": "sgd", **MOMENTUM},
        "corrected at the worker": {"algorithm": f"{SPARSE}+correction0.9"},
        "momentum at the server": {"algorithm": SPARSE, **MOMENTUM},
    },
    ("cnn", "adamw"): {
        "ddp": {"algorithm": "sgd", **ADAMW},
        "AdamW at the server": {"algorithm": SPARSE, **ADAMW},
        "own step": {"algorithm": f"{SPARSE}+inner", **ADAMW},
    },
}
"""Methods by network and optimizer: one step per round, or H, then a message of less than .21 H bits per entry.

What lost is run `once`: the first seed, a random split, two workers.
"""
ETAS = {"cnn momentum random": 0.05, "cnn momentum sorted": 0.02, "cnn adamw random": 0.002, "cnn adamw sorted": 0.002}
ETAS |= {"text-lm momentum random": 0.2, "text-lm momentum sorted": 0.2}
ETAS |= {"text-lm adamw random": 0.004, "text-lm adamw sorted": 0.004}
"""Step sizes, the same for all methods: those that suit DistributedDataParallel (text-lm: of a few, on seed 100)."""


def drop_in_cases(seeds: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Every network, optimizer, split, number of workers, method and seed."""
    for seed in seeds:
        for (network, optimizer), methods in DROP_IN.items():
            for cut, workers in (("random", 2), ("random", 4), ("sorted", 2), ("sorted", 4)):
                first = (cut, workers, seed) == ("random", 2, 0)
                chosen = (method for method, given in methods.items() if first or not given.get("once"))
                yield from ((network, optimizer, cut, workers, method, seed) for method in chosen)


def drop_in_rows(case: tuple[Any, ...], data_dir: str, quick: bool) -> Iterator[Row]:
    """Train one method for the given number of steps."""
    network, optimizer, cut, workers, method, seed = case
    given = dict(DROP_IN[network, optimizer][method])
    problem = cnn_problem(data_dir, cut, workers, seed) if network == "cnn" else text_problem(cut, workers, seed)
    eta = given.get("eta", ETAS[f"{network} {optimizer} {cut}"])
    training = drop_in_training(problem, given, eta, workers, seed)
    began = time.monotonic()
    for _ in range((20 if quick else STEPS[network]) // training.stages.local_steps):
        training.step()
    seconds = time.monotonic() - began
    row = {"network": network, "optimizer": optimizer, "split": cut, "workers": workers, "method": method, "seed": seed}
    accuracy = training.accuracy()
    row |= {"eta": eta, "accuracy": "" if accuracy is None else f"{accuracy:.4f}", "seconds": f"{seconds:.0f}"}
    yield row | result(str(given["algorithm"]), training, 0.0)


def drop_in_training(problem: ModuleProblem, given: dict[str, Any], eta: float, workers: int, seed: int) -> Training:
    """Return the training of a method; the optimizer that steps on gradients is the same for all."""
    chosen = algorithm(given["algorithm"])
    name, options = given.get("optimizer", "SGD"), given.get("optimizer_options", {})
    stages = chosen.stages(H=given.get("H", 1), inner={"optimizer": name, "eta": eta, "options": options})
    server = chosen.outer or Outer(name, eta, options)
    if "outer" in given:
        server = Outer(server.name, server.eta, given["outer"])
    theta = problem.start()
    if server.name == "SGD" and not server.options:
        stepping: Any = ClosedFormSGD(theta, Constant(server.eta))
    else:
        make = getattr(torch.optim, server.name)
        stepping = TorchOptimizer(theta, lambda parameters: make(parameters, lr=server.eta, **server.options))
    return Training(problem, stepping, stages, Laziness(workers=workers), seed=seed)


def cnn_problem(data_dir: str, cut: str, workers: int, seed: int) -> ModuleProblem:
    """Return a CNN with BatchNorm and dropout on 12,000 images of MNIST, dealt at random or by label."""
    loaded = load("mnist", data_dir=Path(data_dir))
    assert loaded.test_features is not None
    assert loaded.test_labels is not None
    chosen = np.random.default_rng(seed).permutation(len(loaded.labels))[:12_000]
    labels = loaded.labels[chosen]
    shards = split("sorted" if cut == "sorted" else "homogeneous", labels, workers, seed)
    torch.manual_seed(seed)
    module = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(288, 10)),
    )
    images = loaded.features[chosen].reshape(-1, 1, 28, 28).astype(np.float32)
    test = (loaded.test_features[:5_000].reshape(-1, 1, 28, 28).astype(np.float32), loaded.test_labels[:5_000])
    batch = 64 / 12_000
    return ModuleProblem(module, cross_entropy, (images, labels), shards, batch=batch, seed=seed, test=test)


def text_problem(cut: str, workers: int, seed: int) -> ModuleProblem:
    """Return the task text-lm: windows dealt at random, or one domain per worker."""
    setting = "heterogeneous" if cut == "sorted" else "homogeneous"
    spec = task("text-lm").spec("sgd", setting=setting, seed=seed, workers=workers)
    problem = factories.problem(spec)
    assert isinstance(problem, ModuleProblem)
    return problem


# -- blocks --------------------------------------------------------------------------------------------------------

BY_BLOCK = ("lag+dense+difference", "wk1+dense+difference", "clag+grid0.25+ec+difference")
"""Each decides of the whole vector, of every tensor, and of pieces of at most 256 entries."""
BLOCK_TARGET = 0.05


def block_cases(seeds: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Every seed and algorithm."""
    names = [f"{name}{part}" for name in BY_BLOCK for part in ("", "+blocks", "+blocks256")]
    return ((name, seed) for seed in seeds for name in ["sgd", *names])


def block_rows(case: tuple[Any, ...], data_dir: str, quick: bool) -> Iterator[Row]:
    """Train a network of two layers on digits, sorted by label, until the loss is reached."""
    name, seed = case
    spec = task("digits").spec(name, model="mlp", lam=0.0, setting="heterogeneous", seed=seed)
    training = factories.training(spec, factories.problem(spec, data_dir))
    run_to(training, BLOCK_TARGET, every=10, rounds=20 if quick else 1000)
    yield {"seed": seed, "eta": spec.eta} | result(name, training, BLOCK_TARGET)


# -- what is kept, and printed ---------------------------------------------------------------------------------------

Rows = Callable[[tuple[Any, ...], str, bool], Iterator[Row]]
PARTS: dict[str, tuple[Callable[[Iterable[int]], Iterator[tuple[Any, ...]]], Rows, tuple[str, ...], int]] = {
    "regressions": (regression_cases, regression_rows, ("task", "setting"), 5),
    "network": (network_cases, network_rows, (), 3),
    "blocks": (block_cases, block_rows, (), 5),
    "drop-in": (drop_in_cases, drop_in_rows, ("network", "optimizer", "split", "workers", "method"), 5),
}
"""Of each: its cases, a case's rows, what its table is grouped by besides the algorithm, seeds."""


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--quick", action="store_true", help="a few rounds of each, written nowhere")
    parser.add_argument("--again", action="store_true", help="regressions: what another coder has made, again")
    parser.add_argument("--only", default="", help="cases that contain all of these words, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    cases, rows_of, group, seeds = PARTS[given.part]
    path = RESULTS / f"say-less-{given.part}.csv"
    done = read(path) if not given.quick else []
    if given.again:
        for i, row in enumerate(done):
            coded = given.part == "regressions" and row["algorithm"] == REGRESSIONS[0] and row["coder"] != str(FORMAT)
            if coded and all(word in row["case"] for word in given.only.split(",")):
                done[i] = coded_again(row, done, given.data_dir)
                write(path, done)
                print(done[i], flush=True)
        print_table(done, group)
        return
    for case in cases(range(seeds if given.seeds is None else given.seeds)):
        text = " ".join(map(str, case))
        if not all(word in text for word in given.only.split(",")) or any(row["case"] == text for row in done):
            continue
        found = [{"case": text, **row} for row in rows_of(case, given.data_dir, given.quick)]
        done += found
        if not given.quick:
            write(path, done)
        for row in found:
            print({name: value for name, value in row.items() if name != "case"}, flush=True)
    print_table(done, group)
    if given.part == "drop-in":
        print_beside_ddp(done)


def read(path: Path) -> list[Row]:
    """Return the rows that are there."""
    if not path.exists():
        return []
    with path.open(newline="") as lines:
        return [{**row, "coder": row.get("coder", "1")} for row in csv.DictReader(lines)]


def write(path: Path, rows: list[Row]) -> None:
    """Write all rows, whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


def print_table(rows: list[Row], group: tuple[str, ...]) -> None:
    """Print the mean and the range of every group's seeds."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((*(str(row[name]) for name in group), str(row["algorithm"])), []).append(row)
    print(
        "| " + " | ".join((*group, "algorithm", "seeds", "reached", "loss", "accuracy", "rounds", "gradients")), end=""
    )
    print(" | Mbit up | range | Mbit down |")
    for key, members in groups.items():
        numbers = {n: [float(m[n]) for m in members if m.get(n)] for n in ("loss", "accuracy", "rounds", "gradients")}
        means = [f"{statistics.mean(v):.5g}" if v else "" for v in numbers.values()]
        up, down = ([float(member[name]) / 1e6 for member in members] for name in ("bits_up", "bits_down"))
        reached = sum(str(member["reached"]) == "True" for member in members)
        line = [*key, str(len(members)), str(reached), *means, f"{statistics.mean(up):.5g}"]
        print("| " + " | ".join([*line, f"{min(up):.4g} to {max(up):.4g}", f"{statistics.mean(down):.5g}"]) + " |")


def print_beside_ddp(rows: list[Row]) -> None:
    """Print every method beside DistributedDataParallel's runs of the same seeds and step size: means, and ranges."""
    case = ("network", "optimizer", "split", "workers", "eta")
    yardsticks: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if str(row["method"]).startswith("ddp"):
            yardsticks.setdefault((*(str(row[n]) for n in (*case, "seed")),), []).append(row)
    pairs: dict[tuple[str, ...], list[tuple[Row, Row]]] = {}
    for row in rows:
        if not str(row["method"]).startswith("ddp"):
            key = (*(str(row[n]) for n in case),)
            several = yardsticks.get((*key, str(row["seed"])), [])
            for beside in several:
                method = f"{row['method']}, beside {beside['method']}" if len(several) > 1 else str(row["method"])
                pairs.setdefault((*key, method), []).append((row, beside))
    print(
        "| network, optimizer, split, workers | method | seeds | accuracy, % | DDP's | points | loss | DDP's ", end=""
    )
    print("| more, % | fewer bytes up | down |\n| --- | --- |" + " ---: |" * 9)
    for (*names, _, method), both in pairs.items():
        scores, losses = ([[float(r[n]) for r in pair] for pair in both] for n in ("accuracy", "loss"))
        up, down = ([float(d[n]) / float(r[n]) for r, d in both] for n in ("bits_up", "bits_down"))
        line = [", ".join(names), method, str(len(both))]
        line += [f"{100 * statistics.mean(column):.2f}" for column in zip(*scores, strict=True)]
        line += [spread([100 * (own - ddp) for own, ddp in scores])]
        line += [f"{statistics.mean(column):.4f}" for column in zip(*losses, strict=True)]
        line += [spread([100 * (own / ddp - 1) for own, ddp in losses])]
        print("| " + " | ".join([*line, f"{statistics.mean(up):.0f}", f"{statistics.mean(down):.0f}"]) + " |")


def spread(values: list[float]) -> str:
    """Return the mean, and the range where there are several."""
    text = f"{statistics.mean(values):+.2f}"
    return text if len(values) == 1 else f"{text} ({min(values):+.2f} to {max(values):+.2f})"


if __name__ == "__main__":
    main()
