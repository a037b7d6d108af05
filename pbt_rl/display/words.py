"""Texts for people: plural forms, and what a search notes about a member in whole sentences."""

from __future__ import annotations

import re

_EVICTED = re.compile(r"evicted: (\S+) is at place (\d+) of (\d+)")
_COMPLETED = re.compile(r"completed: (\S+)")


def counted(number: int, thing: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 actor`, `2 actors`. plural: if it is not the noun with an s."""
    return f"{number} {thing if number == 1 else plural or thing + 's'}"


def in_words(reason: str) -> str:
    """Return the reason of a decision as it is shown; the journal keeps it as it was, for `pbt-rl audit`."""
    if found := _EVICTED.fullmatch(reason):
        score, place, members = found.groups()
        return f"given up with a score of {score}, number {place} of {members}"
    if found := _COMPLETED.fullmatch(reason):
        return f"trained to its end, with a score of {found[1]}"
    return reason
