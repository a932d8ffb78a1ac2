"""`lasg.lazy` beside torchft's own DiLoCo class, with its lighthouse and managers: the same models, round by round."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import lasg
from tests.loops.test_lazy_loop import NESTEROV, doubled, train
from tests.loops.test_lazy_optimizer import flat, module
from tests.transports.ranks import on_ranks

local_sgd: Any = pytest.importorskip("torchft.local_sgd")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torchft's, of logging
EVERY, ROUNDS, RANKS = 3, 20, 2


def inner(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)


def rounds_of(model: Any, optimizer: torch.optim.Optimizer, rank: int) -> list[Tensor]:
    """Train; return the model after every round."""
    batches, found = doubled(rank, EVERY * ROUNDS), []
    for begin in range(0, len(batches), EVERY):
        train(model, optimizer, batches[begin : begin + EVERY])
        found.append(flat(model).clone())
    return found


def ours() -> list[Tensor]:
    model = module().double()
    optimizer = inner(model)
    with lasg.lazy(model, optimizer, every=EVERY, algorithm="diloco", outer=torch.optim.SGD, outer_options=NESTEROV):
        return rounds_of(model, optimizer, dist.get_rank())


def theirs() -> list[list[Tensor]]:
    """Train with torchft: a lighthouse, and a replica per thread, each with a manager and a store of its own."""
    torchft: Any = pytest.importorskip("torchft")
    coordination: Any = pytest.importorskip("torchft.coordination")
    lighthouse = coordination.LighthouseServer(bind="127.0.0.1:0", min_replicas=RANKS, join_timeout_ms=20_000)
    models, found = [module().double() for _ in range(RANKS)], dict[int, Any]()

    def replica(rank: int) -> None:
        model, optimizer = models[rank], inner(models[rank])
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(),
            load_state_dict=model.load_state_dict,
            state_dict=model.state_dict,
            min_replica_size=RANKS,
            use_async_quorum=False,
            init_sync=False,  # all begin with one model
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=store.port,
            lighthouse_addr=lighthouse.address(),
            replica_id=f"replica-{rank}",
            hostname="127.0.0.1",
        )
        try:
            options: Any = NESTEROV
            outer = torch.optim.SGD(model.parameters(), **options)
            with local_sgd.DiLoCo(manager, [model], optimizer, outer, sync_every=EVERY):
                found[rank] = rounds_of(model, optimizer, rank)
            found[-1 - rank] = manager.current_step()
        finally:
            manager.shutdown(wait=False)

    threads = [threading.Thread(target=replica, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    lighthouse.shutdown()
    assert [found.get(-1 - rank) for rank in range(RANKS)] == [ROUNDS] * RANKS, "every round was committed"
    return [found[rank] for rank in range(RANKS)]


def test_a_dense_loop_is_torchfts_diloco_over_20_rounds() -> None:
    own, other = on_ranks(RANKS, ours), theirs()
    for k in range(ROUNDS):
        assert torch.equal(own[0][k], own[1][k])
        for rank in range(RANKS):
            assert (own[rank][k] - other[rank][k]).abs().max() <= 1e-6 * other[rank][k].abs().max(), k
    assert (own[0][-1] - own[0][0]).abs().max() > 1e-2, "the model moves"
