"""Options as people give them.

Names: those of other trainers, shortened ones, misspelt ones. Values: numbers such as 1e6, 1M, 10_000_000 or 2.5k.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection

from pbt_rl.extras import offered
from pbt_rl.options import MOST

ELSEWHERE: dict[str, tuple[str, str]] = {
    name: (option, remark)
    for lines in offered("pbt_rl", "OTHER_NAMES")
    for option, remark, names in lines
    for name in names.split()
}
"""Name elsewhere -> (option of `pbt-rl train`, remark)."""
NO_OPTION = {name: text for lines in offered("pbt_rl", "NO_OPTION") for name, text in lines.items()}
"""Name elsewhere -> what is done here instead of an option."""


def spelt(name: str) -> str:
    """Return a name as options are spelt: small letters, `-` between words, no dashes before it."""
    return name.lstrip("-").replace("_", "-").lower()


def unknown(name: str, known: Collection[str], *, sign: str = "--") -> str:
    """Return one line about a name that is none of the known options (dotted, with `-`), with the right one if it
    is recognised.
    """
    typed = spelt(name)
    if typed in NO_OPTION:
        return f"{name} is no option: {NO_OPTION[typed]}"
    last = typed.rpartition(".")[2]
    option, remark = ELSEWHERE.get(typed) or ELSEWHERE.get(last, ("", ""))
    if option in known:
        return f"{name} is no option: write {sign}{option}{f'; {remark}' if remark else ''}"
    same = [k for k in known if k.rpartition(".")[2] == last]
    close = same or difflib.get_close_matches(typed, known, n=3, cutoff=0.75)
    if not close:
        leaves = {k.rpartition(".")[2]: k for k in known}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(last, leaves, n=3, cutoff=0.75)]
    if close:
        return f"{name} is no option: did you mean {' or '.join(sign + k for k in sorted(close))}?"
    return f"{name} is no option"


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
