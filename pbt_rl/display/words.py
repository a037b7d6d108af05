"""Texts for people: plural forms, and what a decision says about a member in whole sentences."""

from __future__ import annotations

from pbt_rl.pbt.changes import Change


def counted(number: int, thing: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 actor`, `2 actors`. plural: if it is not the noun with an s."""
    return f"{number} {thing if number == 1 else plural or thing + 's'}"


def in_words(reason: str, change: Change) -> str:
    """Return the reason of a decision as it is shown. change: what the decision does."""
    if change.score is not None and change.completed:
        return f"trained to its end, with a score of {change.score:.4g}"
    if change.score is not None and change.place is not None:
        place, members = change.place
        return f"given up with a score of {change.score:.4g}, number {place} of {members}"
    return reason
