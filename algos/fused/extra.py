"""Declares a kernel of Adam for GPUs."""

from __future__ import annotations

from typing import Any


def ADAM_KERNEL(*arguments: Any) -> Any:
    """See `kernel.adam_kernel`: what steps policies on a device, or why it cannot."""
    from .kernel import adam_kernel  # noqa: PLC0415 - imports torch

    return adam_kernel(*arguments)


ALGORITHMS: dict[str, Any] = {}
ASKED = ()
"""Command lines that ask for it: none, it is used where it can be."""
