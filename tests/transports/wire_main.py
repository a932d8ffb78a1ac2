"""In a network namespace of its own: what ranks say they sent, and what the kernel says the interface carried."""

from __future__ import annotations

import fcntl
import json
import socket
import struct
from functools import partial
from pathlib import Path
from typing import Any

STEPS = 12
CASES = [
    ("always", "dense", "auto"),
    ("wk2", "dense", "hub"),
    ("wk2", "qsgd8:512", "auto"),
    ("pse", "qsgd4:512", "scatter"),
]
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


def loopback_up() -> None:
    with socket.socket() as any_socket:
        request = struct.pack("16sh", b"lo", 0)
        _, flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | IFF_UP))


def carried() -> int:
    """Return the bytes that the loopback interface sent; /sys would show that of another namespace."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[8])


def loss_of(model: Any, x: Any, y: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(x), y)


def count() -> list[tuple[int, int]]:
    """On a rank: bytes of the kernel and of this rank, for each case."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import lasg

    rank, found = dist.get_rank(), []
    for rule, codec, exchange in CASES:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(400, 1200), nn.Tanh(), nn.Linear(1200, 10))
        opt = lasg.LazyOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), rule, codec, exchange=exchange)
        made = torch.Generator().manual_seed(rank)
        inputs = torch.randn(STEPS, 8, 400, generator=made)
        labels = torch.randint(0, 10, (STEPS, 8), generator=made)
        dist.barrier()
        before, said = carried(), int(opt.sent.sum())
        dist.barrier()
        for x, y in zip(inputs, labels, strict=True):
            opt.step(partial(loss_of, model, x, y))
        mine = int(opt.sent.sum()) - said
        dist.barrier()
        found.append((carried() - before, mine))
        dist.barrier()
    return found


if __name__ == "__main__":
    loopback_up()
    from tests.transports.ranks import on_ranks

    ranks = on_ranks(3, count)
    table = [(ranks[0][i][0], sum(rank[i][1] for rank in ranks)) for i in range(len(CASES))]
    print(json.dumps(table))
