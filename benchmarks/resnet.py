"""ResNet-18 on 20 classes of tiny-imagenet, trained by two ranks: `lasg.lazy` beside local SGD.

    torchrun --nproc-per-node 2 benchmarks/resnet.py --data-dir DIR --method lasg.lazy --seed 0
    python benchmarks/resnet.py --show

Every rank has half of the images, dealt at random in every epoch. Inside, both methods take SGD with momentum, the
same steps and a cosine schedule; both share the model every so many steps, BatchNorm's statistics too. Images are
halved to 32 x 32. Every epoch gives a row of results/resnet.csv; a run that was stopped begins again, and its rows
stay until it has more.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

import lasg
from lasg import counter
from lasg.core.arrays import FloatArray
from lasg.data.loaders import load
from lasg.problems.image_transform import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from lasg.problems.models import ResNet18

CSV = Path(__file__).parent.parent / "results" / "resnet.csv"
EVERY, BATCH, MOMENTUM, DECAY = 20, 25, 0.9, 5e-4
IMAGES = ImageTransform(mean=IMAGENET_MEAN, std=IMAGENET_STD, shift=4, flip=True)
_AVERAGES: Mapping[str, Any] = {"outer": torch.optim.SGD, "outer_options": {"lr": 1.0}}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "local SGD": {"algorithm": "local-sgd"},
    "lasg.lazy": {},
    "lasg.lazy, averages": _AVERAGES,
    "lasg.lazy, averages, rank 32": {"algorithm": "always+lowrank32:rounded+residual", **_AVERAGES, "every": 14},
}
"""What `lasg.lazy` is given. Without more these are its defaults, with an outer step with momentum; `averages` is the
outer step of local SGD, of rate 1. Of a higher rank more is said, 1.43 times as often."""
Row = dict[str, Any]


def halved(features: FloatArray) -> Tensor:
    """Return images of 64 x 64 as bytes of 32 x 32, each the mean of four."""
    images = torch.from_numpy(features.reshape(-1, 3, 64, 64).copy())
    scale = 255.0 if images.is_floating_point() and images.max() <= 1 else 1.0
    parts = [avg_pool2d(part.float() * scale, 2).round().byte() for part in torch.split(images, 500)]
    return torch.cat(parts)


def minibatches(count: int, epoch: int, seed: int) -> list[Tensor]:
    """Return the rows of this rank's minibatches in an epoch: all ranks deal the same cards."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1000 * seed + epoch))
    mine = order[dist.get_rank() :: dist.get_world_size()]
    return [mine[at : at + BATCH] for at in range(0, len(mine) - BATCH + 1, BATCH)]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of the test images that the model knows; every rank looks at its part of them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        pairs = zip(torch.split(images[rank::ranks], 100), torch.split(labels[rank::ranks], 100), strict=True)
        known = torch.tensor([sum(int((model(IMAGES.test(x)).argmax(1) == y).sum()) for x, y in pairs)])
    model.train()
    dist.all_reduce(known)
    return int(known) / len(labels)


def train(given: argparse.Namespace, write: Any) -> None:
    """Train one method; give rank 0's row of every epoch to `write`."""
    found = load("tiny-imagenet-20", data_dir=given.data_dir)
    assert found.test is not None
    images, labels = halved(found.features), torch.from_numpy(found.labels.astype("int64"))
    test = halved(found.test[0]), torch.from_numpy(found.test[1].astype("int64"))
    if given.samples:
        kept = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[: given.samples]
        images, labels = images[kept], labels[kept]
    torch.manual_seed(given.seed)
    model = ResNet18((3, 32, 32), found.classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=MOMENTUM, weight_decay=DECAY)
    steps = given.epochs * len(minibatches(len(labels), 0, given.seed))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    began, step = time.monotonic(), 0
    with lasg.lazy(model, optimizer, **{"every": EVERY, "buffers": "round", **METHODS[given.method]}) as loop:
        for epoch in range(given.epochs):
            total = 0.0
            for rows in minibatches(len(labels), epoch, given.seed):
                key = counter.keys(given.seed, counter.AUGMENTATION, [dist.get_rank()], step)[0, 0]
                loss = cross_entropy(model(IMAGES.train(images[rows], key)), labels[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                step, total = step + 1, total + float(loss.detach())
            right = accuracy(model, *test)
            if dist.get_rank() == 0:
                write(
                    {
                        "method": given.method,
                        "seed": given.seed,
                        "lr": given.lr,
                        "epochs": given.epochs,
                        "epoch": epoch + 1,
                        "rounds": loop.rounds,
                        "train_loss": round(total * BATCH * dist.get_world_size() / len(labels), 4),
                        "accuracy": right,
                        "message_bytes": loop.ledger.bits_up // 8 // dist.get_world_size(),
                        "sent_bytes": int(loop.sent.sum()),
                        "seconds": round(time.monotonic() - began),
                    }
                )


class Table:
    """The rows of all runs, and their file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[Row]:
        """Return the rows that are there."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as lines:
            return list(csv.DictReader(lines))

    def keep(self, run: list[Row]) -> None:
        """Write the rows of a run, unless more of the same run are there."""
        names = ("method", "seed", "lr", "epochs")
        same = [row for row in self.rows() if all(str(row[name]) == str(run[0][name]) for name in names)]
        if len(same) > len(run):
            return
        rows = [row for row in self.rows() if row not in same] + run
        rows.sort(key=lambda row: (row["method"], float(row["lr"]), int(row["seed"]), int(row["epoch"])))
        part = self.path.with_suffix(".part")
        with part.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, list(run[0]))
            writer.writeheader()
            writer.writerows(rows)
        part.replace(self.path)


def show(rows: list[Row]) -> str:
    """Return the table of the runs that came to their end: means over the seeds, and bytes beside local SGD's."""
    ended = [row for row in rows if row["epoch"] == row["epochs"]]
    lines = ["| method | lr | seeds | accuracy, % | rounds | MB of messages per rank | MB sent per rank | fewer |"]
    lines.append("| --- |" + " ---: |" * 7)
    dense = [float(row["sent_bytes"]) for row in ended if row["method"] == "local SGD"]
    for method, lr in dict.fromkeys((row["method"], row["lr"]) for row in ended):
        runs = [row for row in ended if (row["method"], row["lr"]) == (method, lr)]
        right = ", ".join(f"{100 * float(row['accuracy']):.1f}" for row in runs)
        said, sent = (statistics.mean(float(row[name]) for row in runs) for name in ("message_bytes", "sent_bytes"))
        fewer = f"{statistics.mean(dense) / sent:.0f}x" if dense else ""
        cells = (method, lr, len(runs), right, runs[0]["rounds"], f"{said / 1e6:.2f}", f"{sent / 1e6:.2f}", fewer)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train one method as one of the ranks, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--method", choices=list(METHODS), default="lasg.lazy", metavar="METHOD", help=", ".join(METHODS)
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=0, help="train on so many images alone; 0: on all")
    parser.add_argument("--data-dir", type=Path, help="where tiny-imagenet-20.zip is")
    parser.add_argument("--csv", type=Path, default=CSV, help="where the rows are")
    parser.add_argument("--show", action="store_true", help="only print the table")
    given = parser.parse_args()
    table = Table(given.csv)
    if given.show or "RANK" not in os.environ:
        print(show(table.rows()))
        return
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run: list[Row] = []

    def write(row: Row) -> None:
        run.append(row)
        table.keep(run)
        print(row, flush=True)

    train(given, write)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
