"""Data sets, partitions and minibatches. Public: `loaders`, `partition`, `batches`; the rest is not for users."""
