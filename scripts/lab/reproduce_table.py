"""Figures beside expected ones, as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One figure."""

    what: str
    expected: str
    found: str
    passed: bool | None
    """None for a measurement: nothing independent says what it should be."""


Section = tuple[str, Callable[[], list[Row]]]
"""Title, and the function that returns the figures."""


def near(what: str, expected: float, found: float, tolerance: float, digits: int = 4) -> Row:
    """Return the figure of a number that must be as expected within a tolerance."""
    text = f"{expected:.{digits}f} +- {tolerance:g}"
    return Row(what, text, f"{found:.{digits}f}", abs(found - expected) <= tolerance)


def holds(what: str, expected: str, found: str, *, passed: bool) -> Row:
    """Return the figure of anything else."""
    return Row(what, expected, found, passed)


def measured(what: str, found: str, expected: str = "-") -> Row:
    """Return a figure that nothing is expected of, or of which `expected` says what others found."""
    return Row(what, expected, found, None)


def show(name: str, title: str, rows: list[Row], seconds: float) -> None:
    """Print one section as a table."""
    print(f"\n{name}  {title} ({seconds:.0f} s)")
    widths = [max(len(getattr(row, field)) for row in rows) for field in ("what", "expected", "found")]
    head = ("", "expected", "found")
    widths = [max(w, len(h)) for w, h in zip(widths, head, strict=True)]
    print("  " + "  ".join(h.ljust(w) for h, w in zip(head, widths, strict=True)).rstrip())
    for row in rows:
        cells = (row.what, row.expected, row.found)
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        verdict = {True: "pass", False: "FAIL", None: "measured"}[row.passed]
        print(f"  {line}  {verdict}", flush=True)
