"""A member's header as a text of its file's metadata, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields

from pbt_rl.pbt.records import MOST, decoder
from pbt_rl.record.journal import as_json_types
from pbt_rl.wire.snapshot import SnapshotHeader

KEY = "pbt_rl.member"
COUNTS = tuple(field.name for field in fields(SnapshotHeader) if field.name not in ("values", "remembered"))
"""Whole numbers, at least 0."""
_DECODER = decoder(SnapshotHeader)


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
        header: SnapshotHeader = _DECODER.decode(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its member's header cannot be read: {error}") from error
    if not all(0 <= getattr(header, name) < MOST for name in COUNTS):
        raise ValueError(f"its member's header has a count that none can be: {', '.join(COUNTS)}")
    return header
