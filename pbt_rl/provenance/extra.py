"""Declares what the journal's first event says of the program that makes a run."""

from __future__ import annotations

from typing import Any


def IN_START() -> dict[str, Any]:
    """See `record.journal.Journal.start`."""
    from pbt_rl.provenance.versions import git_version, versions  # noqa: PLC0415 - actors read this module

    return {"versions": versions(), "git": git_version()}


ASKED = ()
"""Command lines that ask for it: none, it is used where it is."""
