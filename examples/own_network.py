"""A network of your own: a module, a loss and a dataset. The run is stored like any other, for lasg report."""

from sklearn.datasets import load_digits
from torch import float32, manual_seed, nn, tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import lasg
from lasg.data.partition import dirichlet

x, y = load_digits(return_X_y=True)
data = TensorDataset(tensor(x / 16, dtype=float32), tensor(y))
manual_seed(0)  # the module's start: a run that was stopped goes on only from the same
module = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
shards = dirichlet(y, workers=10, seed=0, alpha=1.0)
problem = lasg.ModuleProblem(module, cross_entropy, data, shards, batch=0.1)

if __name__ == "__main__":
    run = lasg.train(problem, "lasg-wk2", folder="runs/own-network", eta=0.1, D=20, iterations=300, evaluate=100)
    print(f"{run.trace['uploads'][-1]} uploads, SGD sends 3000; loss {run.trace['loss'][-1]:.4f}")
