"""`pbt-rl report`: draw a run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tyro

from pbt_rl.cli.parse import parse
from pbt_rl.errors import ConfigError

PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
"""Module -> package."""


@dataclass(frozen=True)
class ReportCommand:
    """Draw a run, finished or not: one self-contained HTML page, PNG files, CSV, DOT and Newick."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, such as runs/demo."""
    out: Path | None = None
    """Folder to write to; default: `report` in the run's folder."""


def run(arguments: list[str]) -> int:
    """Write the report and print its files."""
    command = parse(ReportCommand, "pbt-rl report", arguments)
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ConfigError(f'pbt-rl report needs {" and ".join(missing)}: pip install "pbt-rl[report]"')
    from pbt_rl.report.write import write_report

    for path in write_report(command.run, command.out or command.run / "report"):
        print(path)
    return 0
