"""A node: one worker and its data, which does not leave it."""

import numpy as np
from flwr.app import Context
from torch.nn.functional import cross_entropy

from lasg import ModuleProblem
from lasg.flower import client_app
from lazyapp.task import model, training_data


def problem(context: Context, worker: int) -> ModuleProblem:
    """Return this node's module, loss and data."""
    config = context.run_config
    x, y = training_data(worker, int(config["workers"]))
    everything = np.arange(len(y))
    batch, seed = float(config["batch"]), int(config["seed"])
    return ModuleProblem(model(), cross_entropy, (x, y), [everything], batch=batch, seed=seed, ids=[worker])


app = client_app(problem)
