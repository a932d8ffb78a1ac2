"""A rank of the tests: a small classifier that trains until a round, and says how every round ended."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import lasg
from lasg.errors import LasgError


def parts(outputs: int = 3) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, outputs))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def run(name: str, at: str, said: Connection, *, rounds: int = 1000, pause: float = 0.02, **options: Any) -> None:
    torch.set_num_threads(1)
    model, optimizer = parts(options.pop("outputs", 3))
    name = options.pop("called", name)
    draws = torch.Generator().manual_seed(sum(name.encode()))
    try:
        loop = lasg.elastic(model, optimizer, **{"lighthouse": at, "name": name, "every": 4, "timeout": 3.0, **options})
        loop.listeners.append(lambda c: said.send((c.k, c.members, c.spoke, c.checksum)))
        with loop:
            while loop.rounds < rounds:
                x = torch.randn(16, 8, generator=draws)
                optimizer.zero_grad()
                cross_entropy(model(x), x[:, :3].argmax(1)).backward()
                optimizer.step()
                time.sleep(pause)
        said.send(("end", loop.rounds, loop.checksum))
    except LasgError as error:
        said.send(("error", str(error)))
