"""Data sets, partitions and minibatches."""
