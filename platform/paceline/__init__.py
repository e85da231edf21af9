"""Paceline: a Ray cluster of GPUs that keeps its pace."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.sdk.aio import AsyncClient
    from paceline.sdk.client import Client

__all__ = ["AsyncClient", "Client", "__version__"]

__version__ = version("paceline")

_HOMES = {"Client": "paceline.sdk.client", "AsyncClient": "paceline.sdk.aio"}


def __getattr__(name: str) -> Any:
    """The clients are imported when they are first named: workers import this package and need neither."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
