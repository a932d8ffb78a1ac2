"""The paper's CNN on MNIST: lazy aggregation, or Flower's FedAvg."""
