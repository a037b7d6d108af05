"""Declares distributions of actions beside categories and normals."""

from __future__ import annotations

from typing import Any

ALGORITHMS: dict[str, Any] = {}
DISTRIBUTIONS = {
    "tanh": "pbt_rl.algos.more_actions.tanh:TanhGaussian",
    "hybrid": "pbt_rl.algos.more_actions.hybrid:Hybrid",
}
"""See `algos.distributions.make_distribution`."""
ASKED = ("train --env gym/Pendulum-v1 --model.action-bounds tanh --show",)
"""Command lines that ask for it."""
