"""Environments of the interface before Gymnasium. Gymnasium is imported with the first of these names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .wrapper import OldGym, make_crafter

__all__ = ["OldGym", "make_crafter"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".wrapper", __name__), name)
