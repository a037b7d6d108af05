"""PB2 and PB2-Mix: a Gaussian process chooses the values."""

from __future__ import annotations

NAMES = {"Pb2": "pb2", "Pb2Mix": "pb2_mix"}
"""Name in `pbt_rl.pbt` -> module of this folder."""
