"""Declares factories of the user's own that make rows of tensors on the learner's device: `make(rows, device)`."""

from __future__ import annotations

from ..family import Factory

FAMILIES = ()
FACTORIES = (Factory(("rows", "device"), ".resident.custom"),)
WITH_TORCH = True
"""Where an environment is made."""
ASKED = ("train --env tensors/pendulum --show",)
"""Command lines that ask for it."""
