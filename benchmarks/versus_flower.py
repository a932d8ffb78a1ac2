"""The same small problem in Flower's simulation engine and here: M = 10, p = 22, one gradient a round.

    pip install 'lasg[data,flower]'      # flwr 1.41.0 with Ray; an environment of its own is best
    python benchmarks/versus_flower.py

Both run plain SGD on the same minibatch size from the same model; Flower's server sends the model to ten nodes,
each answers with its gradient, and the server steps. Start-up is left out: rounds are timed after a warm-up.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

# Before flwr is imported: no telemetry, no look for updates, no log line a message.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_DEDUP_LOGS": "0"}

import numpy as np
from threadpoolctl import threadpool_limits

from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import ALWAYS
from lasg.core.server import Laziness
from lasg.data.partition import homogeneous
from lasg.problems.regression import Regression
from lasg.transports.local import simulate

M, P, ROWS, BATCH, ETA = 10, 22, 900, 90, 0.1
FLOWER_ROUNDS, LASG_ROUNDS = 30, 5_000


def data() -> tuple[Any, Any]:
    """Return a made-up binary problem."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((M * ROWS, P)).astype(np.float32)
    return features, (features @ rng.standard_normal(P) > 0).astype(np.int64)


def here() -> float:
    """Return seconds a round in lasg's simulation."""
    features, labels = data()
    problem = Regression(features, labels, homogeneous(labels, M, 0), classes=2, batch=BATCH / ROWS, seed=0)
    optimizer = ClosedFormSGD(np.zeros(P, np.float32), Constant(ETA))
    simulation = simulate(problem, optimizer, rule=ALWAYS, laziness=Laziness(workers=M))
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(LASG_ROUNDS // 5):
            simulation.step()
        times.append((time.perf_counter() - started) / (LASG_ROUNDS // 5))
    return statistics.median(times)


def flower() -> float:
    """Return seconds a round in Flower's simulation engine."""
    try:
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import Grid, ServerApp
        from flwr.simulation import run_simulation
    except ImportError:
        raise SystemExit("flwr is not installed: pip install 'lasg[data,flower]'") from None
    client, server = ClientApp(), ServerApp()
    times: list[float] = []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        (theta,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        mine = int(context.node_config["partition-id"])
        features, labels = data()
        x, y = features[mine * ROWS : (mine + 1) * ROWS], 2 * labels[mine * ROWS : (mine + 1) * ROWS] - 1
        chosen = np.random.default_rng().choice(ROWS, BATCH, replace=False)
        x, y = x[chosen], y[chosen].astype(np.float32)
        gradient = (-(y / (1 + np.exp(y * (x @ theta)))) @ x / BATCH).astype(np.float32)
        content = RecordDict({"arrays": ArrayRecord([gradient]), "metrics": MetricRecord({"num-examples": BATCH})})
        return Message(content=content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        theta = np.zeros(P, np.float32)
        while len(list(grid.get_node_ids())) < M:
            time.sleep(0.1)
        nodes = list(grid.get_node_ids())
        for _ in range(FLOWER_ROUNDS):
            started = time.perf_counter()
            record = RecordDict({"arrays": ArrayRecord([theta])})
            messages = [Message(content=record, message_type="train", dst_node_id=node) for node in nodes]
            replies = list(grid.send_and_receive(messages))
            gradients = [reply.content.array_records["arrays"].to_numpy_ndarrays()[0] for reply in replies]
            assert len(gradients) == M
            theta = theta - ETA * np.mean(gradients, axis=0)
            times.append(time.perf_counter() - started)

    run_simulation(
        server_app=server, client_app=client, num_supernodes=M, backend_config={"client_resources": {"num_cpus": 1}}
    )
    return statistics.median(times[5:])


def main() -> None:
    """Print both, and the ratio."""
    theirs = flower()
    with threadpool_limits(1):
        ours = here()
    print(
        f"Flower {theirs * 1e3:.0f} ms a round, lasg {ours * 1e6:.0f} microseconds a round: {theirs / ours:,.0f} times"
    )


if __name__ == "__main__":
    main()
