"""The server of FedAvg: Flower's own strategy, and a line a round of what it has reached."""

import csv
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from mnistapp.task import measure, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the settings say."""
    config = context.run_config
    workers, every = int(config["workers"]), int(config["evaluate-every"])
    net, measured = model(), measure(context)
    trace = Path(str(config["out"])) / "trace.csv"
    trace.parent.mkdir(parents=True, exist_ok=True)
    with trace.open("w", newline="") as file:
        csv.writer(file).writerow(("round", "uploads_so_far", "loss", "accuracy"))

    def evaluate(done: int, arrays: ArrayRecord) -> MetricRecord | None:
        if done == 0 or done % every:
            return None
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = measured(net)
        with trace.open("a", newline="") as file:
            csv.writer(file).writerow((done, workers * done, loss, accuracy))
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=workers, min_available_nodes=workers, min_evaluate_nodes=0)
    strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=int(config["rounds"]), evaluate_fn=evaluate)
