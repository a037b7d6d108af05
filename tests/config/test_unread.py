"""Every option that is declared is read."""

import ast
from functools import cache
from pathlib import Path

import pytest

import pbt_rl
from pbt_rl.cli.envs import CheckCommand, DmlabCacheCommand
from pbt_rl.cli.evaluate import EvalCommand, ExportCommand
from pbt_rl.cli.prove import ProveCommand
from pbt_rl.cli.report import AuditCommand, ReportCommand
from pbt_rl.cli.resume import ResumeCommand
from pbt_rl.cli.runs import RunsCommand
from pbt_rl.cli.sweep import SweepCommand
from pbt_rl.cli.watch import WatchCommand
from pbt_rl.config.command import TrainCommand
from pbt_rl.options.declare import table

COMMANDS = [
    *(TrainCommand, ResumeCommand, SweepCommand, ProveCommand, EvalCommand, ExportCommand, CheckCommand),
    *(DmlabCacheCommand, AuditCommand, ReportCommand, RunsCommand, WatchCommand),
]
BY_THE_LINE = {"config", "recipe"}
"""Options whose text is asked for before the others are read."""


@cache
def read():
    """Return the names of attributes that the code reads, and the texts in it."""
    attributes, texts = set(), set()
    package = Path(pbt_rl.__file__).parent
    folders = [package, (package / "envs").resolve(), (package / "algos").resolve()]  # the last two are links
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(attr=name, ctx=ast.Load()):
                    attributes.add(name)
                case ast.Constant(value=str(text)):
                    texts.add(text)
    return attributes, texts


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_is_declared_and_read_by_nothing(command):
    attributes, texts = read()
    unread = [
        name
        for name, option in table(command).items()
        if option.path[-1] not in (texts if option.path[0] == "hypers" else attributes | BY_THE_LINE)
    ]
    assert unread == []
