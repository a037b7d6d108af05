"""PB2 and PB2-Mix: a Gaussian process chooses the values."""

from __future__ import annotations

NAMES = {"Pb2": "pbt_rl.pbt.pb2.pb2", "Pb2Mix": "pbt_rl.pbt.pb2.pb2_mix"}
"""Name in `pbt_rl.pbt` -> its module."""
