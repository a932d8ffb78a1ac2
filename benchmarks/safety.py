"""Do no harm: what lasg's LazyOptimizer gets by default beside DistributedDataParallel, on real ranks, seed by seed.

    python benchmarks/safety.py --data-dir DIR                  # prints the table; goes on where it was stopped
    python benchmarks/safety.py --data-dir DIR --methods lazy   # the next step: rule wk2, which may stay silent

Twelve combinations of a network, an optimizer, a number of ranks and a split. Both methods start from the same
weights and see the same minibatches and dropout masks. Networks on images are compared by their test accuracy in
percent, the transformer by its loss on held-out text. BatchNorm's statistics are averaged over the ranks before the
model is measured, for both alike. Steps are common ones, not tuned for either.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import multiprocessing
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lasg
from lasg.data import text
from lasg.data.loaders import load

RESULTS = Path(__file__).parent.parent / "results"
SEEDS = 5
BATCH = {2: 32, 4: 16, 8: 8}
"""Samples per rank and step, by the number of ranks: 64 in all."""
EPOCHS, IMAGES, TESTED = 3, 6_000, 5_000
TEXT_STEPS, CONTEXT = 250, 32
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.002),
}
LAZY: dict[str, dict[str, Any]] = {
    "default": {},
    "lazy": {"rule": "wk2"},
    "paper": {"rule": "wk2", "codec": "dense", "c": 0.1},
}
"""The options of LazyOptimizer behind each method; `paper` is the paper's constant, made for convex problems."""
METHODS = ("ddp", *LAZY)


class Combination(NamedTuple):
    """What is trained, by what, on how many ranks, on which data."""

    model: str
    optimizer: str
    ranks: int
    split: str


COMBINATIONS = (
    Combination("cnn", "momentum", 2, "random"),
    Combination("cnn", "sgd", 2, "random"),
    Combination("cnn", "momentum", 4, "sorted"),
    Combination("cnn", "adamw", 4, "random"),
    Combination("cnn", "momentum", 8, "random"),
    Combination("mlp", "momentum", 2, "random"),
    Combination("mlp", "sgd", 4, "sorted"),
    Combination("mlp", "adamw", 8, "random"),
    Combination("transformer", "adamw", 2, "random"),
    Combination("transformer", "adamw", 4, "sorted"),
    Combination("transformer", "momentum", 4, "random"),
    Combination("transformer", "adamw", 8, "sorted"),
)


# -- what is trained -----------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """A small character transformer: two layers of 64, four heads."""

    def __init__(self, letters: int, width: int = 64) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the next letter, at every place."""
        found: Tensor = self.out(self.layers(self.letters(x) + self.places, mask=self.mask, is_causal=True))
        return found.flatten(0, 1)


def network(name: str, side: int, letters: int) -> nn.Module:
    """Return a network with weights from torch's generator."""
    if name == "transformer":
        return Transformer(letters)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 100), nn.ReLU(), nn.Linear(100, 10))
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(16 * (side // 4) ** 2, 10)),
    )


class Data(NamedTuple):
    """What both methods train on: this rank's minibatches, and what the model is measured on."""

    batches: Sequence[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]


def image_data(combination: Combination, rank: int, seed: int, images: tuple[Any, ...]) -> Data:
    """Deal the images to the ranks, at random or by label, and draw this rank's minibatches of all epochs."""
    x, y, test_x, test_y = images
    made = np.random.default_rng(seed)
    chosen = made.permutation(len(y))[: min(IMAGES, len(y))]
    if combination.split == "sorted":
        chosen = chosen[np.argsort(y[chosen], kind="stable")]
    share = len(chosen) // combination.ranks
    mine, size = chosen[rank * share : (rank + 1) * share], BATCH[combination.ranks]
    order = np.concatenate([np.random.default_rng([seed, rank, epoch]).permutation(mine) for epoch in range(EPOCHS)])
    batches = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
    pairs = [(torch.from_numpy(x[rows]), torch.from_numpy(y[rows])) for rows in batches]
    return Data(pairs, (torch.from_numpy(test_x), torch.from_numpy(test_y)))


def text_data(combination: Combination, rank: int, seed: int) -> Data:
    """Draw this rank's pieces of text: of parts of its own where it is dealt sorted; a tenth of each is held out."""
    parts = list(text.king_james().values())
    letters = {letter: i for i, letter in enumerate(sorted(set("".join(parts))))}
    rows = [torch.tensor([letters[letter] for letter in part]) for part in parts]
    kept = [len(row) * 9 // 10 for row in rows]
    parts_of = (
        np.arange(len(rows))[rank :: combination.ranks] if combination.split == "sorted" else np.arange(len(rows))
    )
    made = np.random.default_rng([seed, rank])
    size = BATCH[combination.ranks] // 2

    def pieces(which: Iterable[int], starts: Iterable[int]) -> tuple[Tensor, Tensor]:
        some = torch.stack([rows[m][start : start + CONTEXT + 1] for m, start in zip(which, starts, strict=True)])
        return some[:, :-1], some[:, 1:].flatten()

    batches = []
    for _ in range(TEXT_STEPS):
        which = made.choice(parts_of, size)
        batches.append(pieces(which, [int(made.integers(kept[m] - CONTEXT)) for m in which]))
    held = [(m, start) for m in range(len(rows)) for start in range(kept[m], len(rows[m]) - CONTEXT - 1, 4 * CONTEXT)]
    return Data(batches, pieces(*zip(*held, strict=True)))


def measure(model: nn.Module, combination: Combination, test: tuple[Tensor, Tensor]) -> float:
    """Return the test accuracy in percent, or the loss on held-out text."""
    model.eval()
    x, y = test
    with torch.no_grad():
        scores = torch.cat([model(x[i : i + 256]) for i in range(0, len(x), 256)])
    model.train()
    if combination.model == "transformer":
        return float(cross_entropy(scores, y))
    return 100 * float((scores.argmax(1) == y).double().mean())


# -- how it is trained ---------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a run came to."""

    measure: float
    uploads: int
    megabytes: float
    """Sent per rank, 10^6 bytes: of lasg as counted; of DDP those of a ring all-reduce."""
    note: str = ""


def train_ddp(model: nn.Module, combination: Combination, data: Data) -> Outcome:
    """Train with DistributedDataParallel."""
    ranks, p = combination.ranks, sum(value.numel() for value in model.parameters())
    ddp = nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False)
    optimizer = OPTIMIZERS[combination.optimizer](model.parameters())
    for x, y in data.batches:
        optimizer.zero_grad()
        cross_entropy(ddp(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    sent = 2 * (ranks - 1) / ranks * 4 * p * len(data.batches) / 1e6
    lasg.LazyOptimizer(optimizer).average_buffers(model)
    return Outcome(measure(model, combination, data.test), ranks * len(data.batches), sent)


def train_lasg(model: nn.Module, combination: Combination, data: Data, options: Mapping[str, Any]) -> Outcome:
    """Train with the lazy optimizer."""
    opt = lasg.LazyOptimizer(OPTIMIZERS[combination.optimizer](model.parameters()), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in data.batches:
            opt.step(lambda: cross_entropy(model(x), y))  # noqa: B023
    opt.average_buffers(model)
    note = next((str(one.message) for one in caught if "given up" in str(one.message)), "")
    return Outcome(measure(model, combination, data.test), opt.ledger.uploads, int(opt.sent.sum()) / 1e6, note)


def train(combination: Combination, method: str, seed: int, images: tuple[Any, ...] | None) -> Outcome:
    """Train on this rank, together with the others."""
    rank = dist.get_rank()
    if images is None:
        data, side = text_data(combination, rank, seed), 0
    else:
        data, side = image_data(combination, rank, seed, images), images[0].shape[-1]
    torch.manual_seed(seed)
    model = network(combination.model, side, 63)
    torch.manual_seed(1000 * seed + rank + 1)
    if method == "ddp":
        return train_ddp(model, combination, data)
    return train_lasg(model, combination, data, LAZY[method])


# -- ranks, the stored runs and the table --------------------------------------------------------------------------

Job = tuple[Combination, str, int]
RUN_FIELDS = ("model", "optimizer", "ranks", "split", "method", "seed", *Outcome._fields, "seconds")


def images_of(data_dir: Path | None) -> tuple[Any, ...]:
    """Return MNIST, or, without it, the digits that scikit-learn has: training and test images with their labels."""
    data = load("mnist" if data_dir else "digits", data_dir=data_dir)
    side = math.isqrt(data.features.shape[1])
    x, y = data.features.reshape(-1, 1, side, side).astype(np.float32), data.labels.astype(np.int64)
    if data.test_features is None or data.test_labels is None:
        cut = len(y) * 4 // 5
        order = np.random.default_rng(0).permutation(len(y))
        return x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]]
    test = data.test_features.reshape(-1, 1, side, side).astype(np.float32)[:TESTED]
    return x, y, test, data.test_labels.astype(np.int64)[:TESTED]


def on_rank(rank: int, ranks: int, folder: str, jobs: Sequence[Job], data_dir: Path | None, path: Path) -> None:
    """Do all jobs of so many ranks; rank 0 writes a line for each."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=300)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks, timeout=limit)
    images = images_of(data_dir) if any(job[0].model != "transformer" for job in jobs) else None
    for combination, method, seed in jobs:
        start = time.perf_counter()
        found = train(combination, method, seed, None if combination.model == "transformer" else images)
        if rank == 0:
            row = (*combination, method, seed, *found, round(time.perf_counter() - start, 1))
            with path.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerow(row)
            print(*row, flush=True)
    dist.destroy_process_group()


def run(jobs: Sequence[Job], data_dir: Path | None, path: Path) -> None:
    """Do the jobs that are not in the file yet."""
    if not path.exists():
        path.write_text(",".join(RUN_FIELDS) + "\n", encoding="utf-8")
    known = {(*combination_of(row), row["method"], int(row["seed"])) for row in stored(path)}
    context = multiprocessing.get_context("spawn")
    for ranks in sorted({combination.ranks for combination, _, _ in jobs}):
        left = [job for job in jobs if job[0].ranks == ranks and (*job[0], *job[1:]) not in known]
        if not left:
            continue
        folder = tempfile.mkdtemp()
        processes = [
            context.Process(target=on_rank, args=(rank, ranks, folder, left, data_dir, path)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        shutil.rmtree(folder)
        if any(process.exitcode for process in processes):
            raise SystemExit(f"a rank of {ranks} failed: what was finished is in {path}")


def stored(path: Path) -> Iterator[dict[str, str]]:
    """Read the runs that are in a file."""
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def combination_of(row: Mapping[str, str]) -> Combination:
    """Return the combination of a stored run."""
    return Combination(row["model"], row["optimizer"], int(row["ranks"]), row["split"])


def table(path: Path, method: str) -> list[dict[str, Any]]:
    """Return a row per combination: DDP and the method, and their difference over the seeds that both have."""
    runs = {(combination_of(row), row["method"], int(row["seed"])): row for row in stored(path)}
    found = []
    for combination in dict.fromkeys(key[0] for key in runs):
        seeds = [seed for of, by, seed in runs if of == combination and by == method]
        pairs = [(runs[combination, "ddp", s], runs[combination, method, s]) for s in seeds]
        if pairs:
            found.append(summary(combination, method, pairs))
    return found


def summary(combination: Combination, method: str, pairs: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
    """Compare seed by seed. No harm: not worse by more than the larger of the bar and two standard errors."""
    ddp, other = (np.array([float(pair[i]["measure"]) for pair in pairs]) for i in (0, 1))
    worse = other - ddp if combination.model == "transformer" else ddp - other
    bar = 0.01 * float(ddp.mean()) if combination.model == "transformer" else 0.5
    error = float(worse.std(ddof=1)) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0.0
    megabytes = [np.mean([float(pair[i]["megabytes"]) for pair in pairs]) for i in (0, 1)]
    uploads = [np.mean([float(pair[i]["uploads"]) for pair in pairs]) for i in (0, 1)]
    return {
        **combination._asdict(),
        "method": method,
        "seeds": len(pairs),
        "ddp": round(float(ddp.mean()), 4),
        "lasg": round(float(other.mean()), 4),
        "worse": round(float(worse.mean()), 4),
        "standard_error": round(error, 4),
        "allowed": round(max(bar, 2 * error), 4),
        "no_harm": bool(worse.mean() <= max(bar, 2 * error)),
        "share_of_uploads": round(uploads[1] / uploads[0], 3),
        "ddp_megabytes": round(megabytes[0], 2),
        "megabytes": round(megabytes[1], 2),
        "fewer_bytes": round(megabytes[0] / megabytes[1], 2),
    }


def main() -> None:
    """Run what is missing, print the table and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where MNIST lies; without it scikit-learn's digits serve")
    parser.add_argument("--methods", nargs="+", choices=METHODS[1:], default=["default"])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of combinations, 0 to 11")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a folder for safety-runs.csv and safety.csv")
    given = parser.parse_args()
    chosen = [COMBINATIONS[i] for i in given.only] if given.only else COMBINATIONS
    path = given.out / "safety-runs.csv"
    methods = ("ddp", *given.methods)
    run([(one, by, seed) for one in chosen for seed in range(given.seeds) for by in methods], given.data_dir, path)
    rows = [row for method in LAZY for row in table(path, method)]
    with (given.out / "safety.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print("  ".join(f"{value}" for value in row.values()))


if __name__ == "__main__":
    main()
