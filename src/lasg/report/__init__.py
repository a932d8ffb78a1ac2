"""Pictures, pages, tables and texts of stored runs.

Public: `plots`, `page`; `paper` and `savings` reproduce the paper. Extension point: a `sinks.Sink` of your own.
"""
