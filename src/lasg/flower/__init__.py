"""Lazy aggregation on Flower: a ServerApp and a ClientApp around lasg's own server and workers.

Names load when they are first used: what needs no Flower works without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lasg.errors import LasgError

if TYPE_CHECKING:
    from lasg.flower.apps import client_app, server_app
    from lasg.flower.settings import Settings

__all__ = ["Settings", "client_app", "server_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'lasg.flower' has no attribute {name!r}")
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise LasgError("this needs Flower: pip install 'lasg[flower]'") from None
    from lasg.flower import apps, settings

    return getattr(settings if name == "Settings" else apps, name)
