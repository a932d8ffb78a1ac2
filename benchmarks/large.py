"""A transformer as large as GPT-2 small, 124 million parameters, on ranks of this machine: time, bytes and memory.

    python benchmarks/large.py --csv results/large.csv         # 2 ranks; some minutes, and 12 GB of memory

Random weights and random tokens: what counts is that it trains, and what it needs. After the third of five rounds each
rank saves its state to a file, without a copy of it in memory; another process loads it, and must end with these bits.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import lasg
from lasg.core.arrays import checksum

ALGORITHMS = ("wk2+dense+difference", "always+topk0.01:chunk4096+residual")
ROUNDS, SAVED = 5, 3
FIELDS = ("algorithm", "ranks", "parameters", "round", "loss", "uploads", "bytes", "seconds", "peak_gb", "resumed")


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many vectors as came in."""
        per_head = self.attention_in(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = per_head.unbind(0)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(seen.transpose(1, 2).flatten(2))
        out: Tensor = x + self.narrower(nn.functional.gelu(self.wider(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """GPT-2's architecture: learned positions, tied embeddings. As it is, GPT-2 small: 124,439,808 parameters."""

    def __init__(
        self, words: int = 50257, length: int = 1024, width: int = 768, heads: int = 12, layers: int = 12
    ) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for parameter in (self.words.weight, self.positions.weight):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a number per word for what follows each token."""
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[-1]))
        out: Tensor = self.norm(self.blocks(x)) @ self.words.weight.T
        return out


SMALL = {"words": 100, "length": 16, "width": 32, "heads": 2, "layers": 2}
"""The same with few parameters: for the test of this program."""


def peak() -> float:
    """Return the largest resident size of this process so far, in GB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Return how badly each token foretells the next."""
    return cross_entropy(model(batch[:, :-1])[0], batch[0, 1:])


def made(algorithm: str, sizes: dict[str, int]) -> tuple[Transformer, lasg.LazyOptimizer]:
    """Return the model, the same on all ranks and in every process, and its optimizer."""
    torch.manual_seed(0)
    model = Transformer(**sizes)
    return model, lasg.LazyOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), algorithm=algorithm)


def train(rank: int, ranks: int, folder: str, algorithm: str, sizes: dict[str, int], tokens: int, resume: bool) -> None:
    """On a rank: do all rounds, saving in between, or only those after that."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/store-{resume}", rank=rank, world_size=ranks)
    model, optimizer = made(algorithm, sizes)
    path = Path(folder) / f"state-{rank}.pt"
    if resume:
        optimizer.load_state_dict(torch.load(path, mmap=True, weights_only=True))
    found: list[Any] = []
    for k in range(SAVED if resume else 0, ROUNDS):
        draw = torch.Generator().manual_seed(ranks * k + rank)
        batch = torch.randint(model.words.num_embeddings, (1, tokens + 1), generator=draw)
        began, sent = time.perf_counter(), int(optimizer.sent.sum())
        loss = optimizer.step(functools.partial(loss_of, model, batch))
        seconds = time.perf_counter() - began
        assert loss is not None and optimizer.last is not None  # noqa: PT018
        uploads = int(optimizer.last.uploaded.sum())
        found.append([k, float(loss), uploads, int(optimizer.sent.sum()) - sent, seconds, peak()])
        if k == SAVED - 1:
            torch.save(optimizer.state_dict(live=True), path)
    flat = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    torch.save([found, checksum(flat)], Path(folder) / f"found-{resume}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def measure(algorithm: str, ranks: int, sizes: dict[str, int], tokens: int) -> list[dict[str, Any]]:
    """Train, then go on from the file in other processes; return a row per round: rank 0's, the largest peak."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        results = []
        for resume in (False, True):
            spawn(train, (ranks, folder, algorithm, sizes, tokens, resume), nprocs=ranks)  # type: ignore[no-untyped-call]
            paths = (Path(folder) / f"found-{resume}-{rank}.pt" for rank in range(ranks))
            results.append([torch.load(path, weights_only=True) for path in paths])
    whole, resumed = results
    same = len({digest for _, digest in whole + resumed}) == 1
    parameters = sum(value.numel() for value in Transformer(**sizes).parameters())
    rows = []
    for each in zip(*(found for found, _ in whole), strict=True):
        k, loss, uploads, sent, seconds, _ = each[0]
        rows.append(
            {
                "algorithm": algorithm,
                "ranks": ranks,
                "parameters": parameters,
                "round": k,
                "loss": f"{loss:.4f}",
                "uploads": uploads,
                "bytes": sent,
                "seconds": f"{seconds:.2f}",
                "peak_gb": f"{max(one[-1] for one in each):.2f}",
                "resumed": "same bits" if same else "OTHER BITS",
            }
        )
    return rows


def main() -> None:
    """Print a row per round, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64, help="per rank and round")
    parser.add_argument("--small", action="store_true", help="a model of 30,000 parameters")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    rows = []
    sizes, tokens = (SMALL, 15) if options.small else ({}, options.tokens)
    print(*FIELDS, sep=",")
    for algorithm in ALGORITHMS:
        for row in measure(algorithm, options.ranks, sizes, tokens):
            rows.append(row)
            print(*row.values(), sep=",", flush=True)
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
