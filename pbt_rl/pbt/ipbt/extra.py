"""IPBT: all members restart when they no longer get better."""

from __future__ import annotations

NAMES = {"Ipbt": "controller"}
"""Name in `pbt_rl.pbt` -> module of this folder."""
