"""Runs: described, trained, stored.

Public: `spec`, `tasks`, `store`, `train`, `runner`, `pool` and `status`; of these lasg.* has what most users need. The
other modules are not for users, and none is an extension point: rules, codecs and problems come through `train`.
"""
