"""LASG: lazily aggregated stochastic gradients, for training across slow, metered or unreliable links."""

__version__ = "0.1.0"
