"""Specs, tasks, stored runs, comparisons and the tables of the paper."""
