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
    what_if: tuple[str, ...] = ()
    """Decide the recorded scores again under other rules, as NAME=VALUE: pbt.exploit=t-test pbt.period-frames=4M.
    Several entries of one option are separated by commas: pbt.factors=2,0.5."""
    trust: bool = False
    """Of a run that was not made here by you: import the modules that config.json names."""


def run(arguments: list[str]) -> int:
    """Audit a run; returns 1 if a decision differs."""
    command = parse(AuditCommand, "pbt-rl audit", arguments)
    if command.what_if:
        from pbt_rl.report.audit.what_if import what_if

        return what_if(command.run, command.what_if, command.trust)
    from pbt_rl.report.audit.recorded import audit

    return audit(command.run, command.trust)
