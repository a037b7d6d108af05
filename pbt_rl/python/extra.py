"""Declares the names for Python."""

from __future__ import annotations

PUBLIC = {
    "train": "pbt_rl.python.api:train",
    "Result": "pbt_rl.python.api:Result",
    "MemberResult": "pbt_rl.python.api:MemberResult",
    "Stop": "pbt_rl.python.stopping:Stop",
    "load_policy": "pbt_rl.python.policy:load_policy",
    "Policy": "pbt_rl.python.policy:Policy",
}
"""Name in `pbt_rl` -> where it is."""
