"""What stored runs say: comparisons, tables, time on links.

Public: `compare`, `link_model` and `link_time`, `series`, `tune`; `paper` and `savings` reproduce the paper. Links of
your own are a `LinkModel` or a TOML file; nothing else here is an extension point.
"""
