"""A member's header as a text of its file's metadata, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pbt_rl.record.journal import as_json_types
from pbt_rl.wire.snapshot import SnapshotHeader

KEY = "pbt_rl.member"
COUNTS = tuple(field.name for field in fields(SnapshotHeader) if field.name not in ("values", "remembered"))
"""Whole numbers, at least 0."""


def header_to_metadata(header: SnapshotHeader) -> dict[str, str]:
    """Return the metadata of a member's file."""
    return {KEY: json.dumps(as_json_types(header), allow_nan=False)}


def header_from_metadata(metadata: Mapping[str, str]) -> SnapshotHeader | None:
    """Return the header of a member's file; None if it has none, as weights alone do.

    Raises ValueError, saying what is wrong.
    """
    if KEY not in metadata:
        return None
    try:
        content = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise ValueError("its member's header is not JSON") from error
    wanted = {field.name for field in fields(SnapshotHeader)}
    if not (isinstance(content, dict) and content.keys() == wanted):
        raise ValueError(f"its member's header does not hold exactly {', '.join(sorted(wanted))}")
    if not all(is_count(content[name]) for name in COUNTS):
        raise ValueError(f"its member's header has a count below 0 or not whole: {', '.join(COUNTS)}")
    if type(content["remembered"]) is not bool:
        raise ValueError("its member's header has no true or false for remembered")
    return SnapshotHeader(**content | {"values": _values(content["values"])})


def is_count(value: Any) -> bool:
    """Return whether this is a whole number from 0 to 2^63; True is none."""
    return type(value) is int and 0 <= value < 2**63


def _values(content: Any) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in content.items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ValueError("its member's values are not names and numbers") from error
