"""IPBT: all members restart when they no longer get better."""

from __future__ import annotations

NAMES = {"Ipbt": "pbt_rl.pbt.ipbt.controller"}
"""Name in `pbt_rl.pbt` -> its module."""
