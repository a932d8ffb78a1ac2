"""Lazy aggregation on Flower."""
