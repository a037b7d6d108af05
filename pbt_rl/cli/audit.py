"""`pbt-rl audit`: decide a recorded run again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from pbt_rl.cli.parse import parse


@dataclass(frozen=True)
class AuditCommand:
    """Decide a recorded run again with a fresh controller, and compare its decisions with the journal bit for bit."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, such as runs/demo."""


def run(arguments: list[str]) -> int:
    """Audit a run; returns 1 if a decision differs."""
    command = parse(AuditCommand, "pbt-rl audit", arguments)
    from pbt_rl.run.audit import audit

    return audit(command.run)
