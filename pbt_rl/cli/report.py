"""Commands `pbt-rl report` and `pbt-rl audit`: draw a recorded run, or repeat its decisions."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import option
from pbt_rl.options.words import parse

PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
"""Python module -> name of its package."""


@dataclass(frozen=True)
class ReportCommand:
    """Draw a finished or running run: one self-contained HTML page, PNG files and CSV files.

    Several runs are compared on one page. Runs that differ only in their seed are drawn as mean and spread.
    """

    runs: tuple[Path, ...] = option(positional=True)
    """Folders of one or more runs, such as runs/demo."""
    out: Path | None = None
    """Output folder. Default: `report` in the run's folder. Default for several runs: `comparison` in the working
    directory."""


def run(arguments: list[str]) -> int:
    """Run `pbt-rl report`: write the report and print its path."""
    command = parse(ReportCommand, "pbt-rl report", arguments)
    if command.out and command.out.suffix in (".html", ".png", ".csv"):
        raise ConfigError(f"--out {command.out} is not a folder: a report has several files. Name a folder")
    check_packages("report", PACKAGES)
    from pbt_rl.report.compare import write_comparison
    from pbt_rl.report.page import write_report

    def begins() -> None:
        print(f"Drawing report of {', '.join(map(str, command.runs))} ...", file=sys.stderr, flush=True)

    if len(command.runs) > 1:
        page, *others = write_comparison(command.runs, command.out or Path("comparison"), begins)
    else:
        (folder,) = command.runs
        page, *others = write_report(folder, command.out or folder / "report", begins)
    print(page)
    print(f"and {len(others)} files with figures and tables in the same folder")
    return 0


def check_packages(command: str, packages: Mapping[str, str]) -> None:
    """Raise ConfigError if a package is not installed.

    command: command that needs the packages. packages: Python module -> name of its package.
    """
    missing = [package for module, package in packages.items() if find_spec(module) is None]
    if missing:
        raise ConfigError(f'pbt-rl {command} needs {" and ".join(missing)}: pip install "pbt-rl[report]"')


@dataclass(frozen=True)
class AuditCommand:
    """Repeat the decisions of a recorded run, and compare them with the journal bit for bit."""

    run: Path = option(positional=True)
    """Folder of a run, such as runs/demo."""
    what_if: tuple[str, ...] = ()
    """OPTION=VALUE ...: apply other rules to the recorded scores, and report which decisions would differ. Example:
    pbt.exploit=t-test pbt.replace-errors=2. Separate several values of an option by commas: pbt.factors=2,0.5."""
    trust: bool = False
    """Import the modules in config.json, even if the run was not made by you on this machine."""


def run_audit(arguments: list[str]) -> int:
    """Run `pbt-rl audit`. Return 1 if a decision differs from the journal. With --what-if, return 0."""
    command = parse(AuditCommand, "pbt-rl audit", arguments)
    if command.what_if:
        from pbt_rl.report.what_if import what_if

        return what_if(command.run, command.what_if, command.trust)
    from pbt_rl.report.audit import audit

    return audit(command.run, command.trust)
