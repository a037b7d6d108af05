"""Numbers as people type them: 1e6, 1M, 10_000_000, 2.5k."""

from __future__ import annotations

import math

from pbt_rl.options import MOST

WHOLE = "a whole number, such as 5000000, 5e6 or 5M"
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


def number(text: str) -> float:
    """Return the number. Raises ValueError whose text is the remedy."""
    digits = text.strip()
    unit = UNITS.get(digits[-1:].lower(), 1.0)
    try:
        value = float(digits[:-1] if unit != 1 else digits)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(value * unit):
        raise ValueError("a finite number")
    return value * unit


def whole(text: str) -> int:
    """Return the whole number. Raises ValueError whose text is the remedy."""
    try:
        value = int(text)  # exact, also beyond the 53 bits of a float
    except ValueError:
        try:
            inexact = number(text)
        except ValueError:
            raise ValueError(WHOLE) from None
        if not inexact.is_integer():
            raise ValueError(WHOLE) from None
        value = int(inexact)
    if abs(value) >= MOST:
        raise ValueError("a whole number of at most 18 digits")
    return value
