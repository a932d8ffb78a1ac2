"""Runs: described, trained, stored."""
