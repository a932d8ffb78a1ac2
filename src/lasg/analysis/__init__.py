"""What stored runs say: comparisons, time on links.

Public: `compare`, `link_model` and `link_time`, `series`. Links of your own are a `LinkModel` or a TOML file;
nothing else here is an extension point.
"""
