"""Real ranks for tests: processes with a gloo group between them, and what each of them found."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

JOIN_SECONDS = 120


def on_ranks(ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `work(*arguments)` on so many ranks; return what each returned, in their order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch.distributed", "lasg.transports.ranks", "lasg.loops.lazy_optimizer", "pytest"]
    )
    found: Any = context.Queue()
    folder = tempfile.mkdtemp()
    processes = [
        context.Process(target=_rank, args=(rank, ranks, folder, found, work, arguments), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    results: dict[int, Any] = {}
    try:
        for _ in processes:
            rank, result, error = found.get(timeout=JOIN_SECONDS)
            if error:
                pytest.fail(f"rank {rank}:\n{error}")
            results[rank] = pickle.loads(result)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
        shutil.rmtree(folder)
    return [results[rank] for rank in range(ranks)]


def _rank(rank: int, ranks: int, folder: str, found: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        place = f"file://{folder}/store"
        dist.init_process_group("gloo", place, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
        found.put((rank, pickle.dumps(work(*arguments)), ""))  # by value: tensors would be shared with a dead process
        with contextlib.suppress(RuntimeError):  # a test may be about ranks that lose one another
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        found.put((rank, None, traceback.format_exc()))
