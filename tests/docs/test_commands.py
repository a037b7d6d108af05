"""Every command that a page shows is understood: its options exist and their values are allowed."""

import re
import shlex

import pytest

import pbt_rl.cli
from pbt_rl.cli import sweep
from pbt_rl.cli.audit import AuditCommand
from pbt_rl.cli.evaluate import EvalCommand
from pbt_rl.cli.export import ExportCommand
from pbt_rl.cli.parse import typed
from pbt_rl.cli.prove import read_words
from pbt_rl.cli.report import ReportCommand
from pbt_rl.cli.runs import RunsCommand
from pbt_rl.cli.train import TrainCommand
from pbt_rl.cli.watch import WatchCommand
from pbt_rl.config import Config
from pbt_rl.options import build, table
from tests.helpers.runs import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
ELSEWHERE = {
    "your-environment.md",
    "environment-interface.md",
    "environments.md",
    "vizdoom.md",
    "dmlab.md",
    "several-agents.md",
    "algorithm.md",
}
"""Pages with tests of their own, which have what their commands name."""
PARSED = {
    "eval": EvalCommand,
    "audit": AuditCommand,
    "export": ExportCommand,
    "report": ReportCommand,
    "runs": RunsCommand,
    "watch": WatchCommand,
    "resume": Config,
}
WITHOUT_OPTIONS = {"envs", "dmlab-cache"}


def commands(page):
    """The command lines in the fenced blocks of a page."""
    blocks = re.findall(
        r"^```(?:bash)?\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [
        line.removeprefix("exec ").partition(" && ")[0]
        for line in lines
        if re.match(r"(exec )?pbt-rl ", line)
    ]


SHOWN = [
    pytest.param(page.name, line, id=f"{page.name}: {line[:60]}") for page in PAGES for line in commands(page)
]


def as_trained(arguments):
    """The command, without its environment and what it names of the user's own."""
    return build(
        TrainCommand, {"env": "toy/identity", **typed(table(TrainCommand), arguments, "pbt-rl train")}
    )


def test_the_pages_show_every_command():
    named = {shlex.split(case.values[1], comments=True)[1] for case in SHOWN}
    assert named >= {name.split()[0] for name in pbt_rl.cli.commands()} - {"dmlab-cache"}
    assert len(SHOWN) > 40


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_a_command_of_a_page_is_understood(page, line):
    line = re.sub(r"\$\w+", "3", line).removesuffix(" ...")  # a variable of the shell; more of the same
    _, command, *arguments = shlex.split(line, comments=True)
    if command == "train":
        if page not in ELSEWHERE and "--help" not in arguments:
            as_trained(arguments)
    elif command == "sweep":
        own, common = sweep._parted(arguments)
        for point in sweep.points(sweep._grid(own["--grid"]), sweep._seeds(own["--seeds"])):
            as_trained(sweep._command(point, sweep._folder(own), common)[1:])
    elif command == "prove":
        as_trained(read_words(arguments).common)
    elif command == "resume":
        typed(table(Config), arguments[1:], "pbt-rl resume")
    elif command not in WITHOUT_OPTIONS:
        typed(table(PARSED[command]), arguments, f"pbt-rl {command}")


@pytest.mark.parametrize("page", ["options.md", "tune.md"])
def test_the_options_of_a_page_exist(page):
    known = {f"--{name}" for name in table(TrainCommand)}
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `--")]
    named = {option for cell in rows for option in re.findall(r"--[a-z][a-z.-]*", cell)}
    assert len(named) > 10
    named -= {"--shaping."}  # a name of the environment's own follows
    assert not {option for option in named if not any(name.startswith(option) for name in known)}


@pytest.mark.parametrize("page", ["from-sample-factory.md", "from-ray-tune.md"])
def test_the_tables_name_options_that_exist(page):
    known = {f"--{name}" for name in table(TrainCommand)}
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    cells = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")]
    named = {option for cell in cells for option in re.findall(r"--[a-z][a-z0-9.-]*", cell)}
    assert len(named) > 15
    assert named <= known
