"""Every command that a page shows, in a block or in running text, is one that the program takes.

Quick: all are parsed, options and values alike. Long: `pbt-rl train`, `prove` and `sweep` are planned with `--show`,
and the commands about runs are called on a recorded run. What is not there (a package, a GPU, a run of that
environment) is named by `NEEDS` and by the families.
"""

import os
import re
import shlex
import shutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import gymnasium
import pytest

import pbt_rl.cli
from pbt_rl.cli import prove, sweep
from pbt_rl.cli.envs import CheckCommand
from pbt_rl.cli.evaluate import EvalCommand, ExportCommand
from pbt_rl.cli.report import AuditCommand, ReportCommand
from pbt_rl.cli.resume import OF_TRAIN, ResumeCommand, may_change
from pbt_rl.cli.runs import RunsCommand
from pbt_rl.cli.watch import WatchCommand
from pbt_rl.config import Config, hypers_of
from pbt_rl.config.command import TrainCommand
from pbt_rl.envs.lookup import FAMILIES
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.options.names import OTHER_NAMES
from pbt_rl.options.words import split as line_of
from pbt_rl.options.words import typed
from tests.helpers.runs import ENVIRONMENT, ROOT, start

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
PARSED = {
    "eval": EvalCommand,
    "audit": AuditCommand,
    "export": ExportCommand,
    "report": ReportCommand,
    "runs": RunsCommand,
    "watch": WatchCommand,
    "resume": ResumeCommand,
    "envs check": CheckCommand,
}
PLACEHOLDERS = {
    "RUN": "runs/pong",
    **{name: f"runs/{name}" for name in "ABC"},
    "ENV": "toy/identity",
    "X": "appo",
    "N": "4",
    "S": "1",
    "F": "4000",
    "P": "4",
    "loop|vmap": "loop",
    "VALUE": "1",
    "OPPONENT": "random",
    "FILE": "options.toml",
    "NAME=VALUE": "margin=0.1",
    "key=value": "places=7",
    "limit=STEPS": "limit=50",
}
"""What a page writes for a value of the reader's own -> one."""
OTHERS = {
    "--pbt.quantile": "added by an example of CONTRIBUTING, tested there",
    "--hypers.beta": "of an example's algorithm, tested with it",
    "--signal": "Slurm's",
    "--requeue": "Slurm's",
    **dict.fromkeys(
        ("--ahead", "--losses", "--picture", "--activation", "--steps"),
        "of programs that stand in the history",
    ),
    **dict.fromkeys(("--experiment", "--rollout", "--recurrence", "--gamma"), "Sample Factory's"),
}
NEEDS = {
    r"--shaping\.reach|--init-from|--schedule\.run|--against|--video|--format rsl_rl": "a run of that environment",
    r"cuda": "a GPU",
    r"--nodes ray|--track wandb": "a package that is not among those of development",
    r"--config |--pbt\.start-values ": "a file",
    r"HEAD|\bray (up|exec|job)|module:": "names of the reader's own",
}


def blocks(page, language):
    return re.findall(
        rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def spans(page):
    """The code in running text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\|.* at commit \w+ \|\n(\|.*\n)+", "", text, flags=re.MULTILINE)  # a table of what was
    found = re.findall(r"`([^`]+)`(,? at\s+commit)?", text)
    return [" ".join(span.split()) for span, in_the_history in found if not in_the_history]


def commands(page):
    """The command lines of a page that call `pbt-rl`."""
    shown = [line for block in blocks(page, "(?:bash)?") for line in block.replace("\\\n", " ").splitlines()]
    found = [re.match(r"(?:exec |[A-Z_]+=\S* )*(pbt-rl [a-z].*)", line) for line in [*shown, *spans(page)]]
    return [match[1].partition(" && ")[0] for match in found if match]


def words(line):
    """The arguments behind `pbt-rl`, with values for what is the reader's own."""
    line = re.sub(r"\$\w+", "3", line.replace("--env ...", "--env toy/shaped"))
    replaced = [PLACEHOLDERS.get(word, word) for word in shlex.split(line, comments=True) if word != "..."]
    if "--shaping.NAME" in replaced:
        replaced[replaced.index("--shaping.NAME")] = "--shaping.bait"
    return replaced[1:]


def fragments(page):
    """Options in running text."""
    return [span for span in spans(page) if re.match(r"--[a-z]", span)]


def split(arguments):
    """A command's name, which may have two words, and its arguments."""
    two = " ".join(arguments[:2])
    return (two, arguments[2:]) if two in pbt_rl.cli.commands() else (arguments[0], arguments[1:])


def understood(name, arguments):
    """Parse the arguments of a command."""
    if {"--help", "--help-all"} & set(arguments):
        return
    if name == "train":
        line = line_of(arguments)
        typed(table(TrainCommand, hypers=hypers_of(line.last("algo") or "appo")), line, "pbt-rl train")
    elif name == "sweep":
        own, common = sweep._read(arguments)
        for point in sweep.points(sweep._grid(own.grid), sweep._seeds(own.seeds)):
            understood("train", sweep._command(point, own.folder, common.words)[1:])
    elif name == "prove":
        understood("train", prove.read_words(arguments).common)
    elif name in PARSED:
        line = line_of(arguments[name == "resume" :])
        typed(table(PARSED[name]), line, f"pbt-rl {name}")


def cases(found):
    """Parameters of page and line, each line of a page once."""
    return [
        pytest.param(line, id=f"{page.stem}: {line[:70]}")
        for page in PAGES
        for line in dict.fromkeys(found(page))
    ]


WHOLE = cases(commands)
PROGRAMS = cases(
    lambda page: [
        line
        for line in [*spans(page), *(line for block in blocks(page, "") for line in block.splitlines())]
        if re.match(r"make \w|(\S*/)?python (scripts|-m tests)|(python -m )?pytest ", line)
    ]
)


@pytest.fixture(scope="module", autouse=True)
def own_files(tmp_path_factory):
    """The files of all pages, and a stand-in for DeepMind Lab, where modules are found."""
    folder = tmp_path_factory.mktemp("files")
    for page in PAGES:
        for block in blocks(page, "python"):
            if name := re.match(r"# (\w+\.py)\n", block):
                (folder / name[1]).write_text(block)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tests" / "dmlab_standin")
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(ROOT / "tests" / "dmlab_standin")])
        )
        patch.setenv("DMLAB_STANDIN_LOG", str(folder / "calls"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.syspath_prepend(folder)
        yield folder


def skip_what_is_not_here(line):
    if re.search(r"coins/|--pbt\.quantile", line):
        pytest.skip("an example that is tested as a whole")
    for pattern, what in NEEDS.items():
        if re.search(pattern, line):
            pytest.skip(f"needs {what}")
    for family in FAMILIES.values():
        if re.search(rf"(--env |check |=){family.name}/", line) and family.missing:
            pytest.skip(f"needs {family.missing}")
    for package in ("minigrid", "minatar", "crafter", "matplotlib"):
        if f"{package}/" in line and find_spec(package) is None:
            pytest.skip(f"needs {package}")
    for name in re.findall(r"gym/([\w-]+)", line):
        for folder, package in (("mujoco", "mujoco"), ("box2d", "Box2D")):
            where = str(gymnasium.spec(name).entry_point) if name in gymnasium.registry else ""
            if f"envs.{folder}" in where and find_spec(package) is None:
                pytest.skip(f"needs {package}")


def test_the_pages_show_every_command():
    named = {split(words(case.values[0]))[0] for case in WHOLE}
    assert named >= set(pbt_rl.cli.commands())
    assert len(WHOLE) > 80
    assert sum(len(fragments(page)) for page in PAGES) > 150
    assert len(PROGRAMS) > 30


@pytest.mark.parametrize("line", WHOLE)
def test_a_command_is_understood(line):
    name, arguments = split(words(line))
    assert name in pbt_rl.cli.commands()
    if "--pbt.quantile" in arguments:
        pytest.skip("an example that is tested as a whole")
    if len(arguments) > 1 or name == "train":
        understood(name, arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_in_running_text_are_understood(page):
    """By one of the commands, or by the script that the page is about."""
    refused = {line: why for line in fragments(page) if (why := refusal(line))}
    assert not refused


def refusal(line):
    """Why no command takes these options; None if one does."""
    others = OTHERS.keys() | {f"--{name}" for name in OTHER_NAMES}
    if others & set(re.split("[= ]", line)) or re.match(
        r"--[a-z0-9]+_", line
    ):  # Sample Factory's, with a line below
        return None
    if re.fullmatch(r"--[a-z0-9.-]+\*?", line):  # a name, without a value
        return None if name_is_known(line.rstrip(".*")) else "no such option"
    arguments, first = words(f"pbt-rl {line.partition(' has no effect')[0]}"), None
    for name in ("train", *PARSED, "prove"):
        try:
            understood(name, [*(["--name", "x"] if name == "prove" else []), *arguments])
        except ConfigError as error:
            first = first or str(error)
        else:
            return None
    return None if in_a_script(line) else first


def name_is_known(name):
    kinds = [TrainCommand, *PARSED.values(), sweep.SweepCommand, prove.ProveCommand]
    tables = [table(kind) for kind in kinds]
    known = {f"--{option}" for one in tables for option in one}
    known |= {"--help", "--help-all"}
    negated = name.replace("no-", "", 1)
    return any(option.startswith((name, negated)) for option in known) or in_a_script(name)


def in_a_script(line):
    """Whether a script or a test has these options."""
    names = re.findall(r"--[a-z][a-z_-]*", line)
    return any(all(f'"{name}"' in text for name in names) for text in _programs())


@cache
def _programs():
    return [path.read_text() for folder in ("scripts", "tests") for path in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("line", PROGRAMS)
def test_a_program_of_a_page_exists(line):
    if "at commit" in line:
        pytest.skip("stands in the history")
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if re.fullmatch("[a-z-]+", word)} <= set(targets)
        return
    files = [word for word in arguments if word.endswith(".py")]
    assert all((ROOT / name).is_file() for name in files), files
    if program != "pytest" and arguments[:1] == ["-m"] and arguments[1] != "pytest":
        assert find_spec(arguments[1])
    if files and files[0].startswith("scripts/"):
        code = "".join(path.read_text() for path in (ROOT / files[0]).parent.rglob("*.py"))
        options = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        assert all(f'"{option}"' in code or option[2:].replace("-", "_") in code for option in options)


def function(name):
    """What a command calls with its arguments."""
    module, _, called = pbt_rl.cli.commands()[name].module.partition(":")
    return getattr(import_module(module), called or "run")


@pytest.mark.long
@pytest.mark.parametrize("line", [c for c in WHOLE if re.match(r"pbt-rl (train|prove|sweep) ", c.values[0])])
def test_a_command_that_trains_is_planned(line, own_files, monkeypatch, capsys):
    skip_what_is_not_here(line)
    monkeypatch.chdir(own_files)
    name, arguments = split(words(line))
    if name == "train" and not {"--env", "--recipe"} & {word.partition("=")[0] for word in arguments}:
        arguments = ["--env", "toy/shaped", *arguments]
    dry = [] if {"--show", "--help", "--help-all"} & set(arguments) else ["--show", "--no-probe"]
    try:
        code = function(name)([*arguments, *dry])
    except SystemExit as ended:  # --help
        code = ended.code
    assert code == 0
    out = capsys.readouterr().out
    assert out
    if any(line in commands(page) for page in PAGES if page.parent.name != "lab"):
        assert "warning: --pbt.period-frames" not in out


@pytest.fixture(scope="module")
def recorded(own_files):
    """A short run with checkpoints that stay, under the names of the pages."""
    options = (
        "--env toy/identity --mode serial --num-policies 4 --train-for-frames 3000 --pbt.start-frames 500"
    )
    more = "--pbt.period-frames 500 --pbt.min-episodes 1 --save-every-frames 1000 --no-figures --name pong"
    run = start(own_files, "train", *options.split(), *more.split())
    assert run.wait() == 0, run.out + run.err
    return own_files / "runs" / "pong"


OF_RUNS = [c for c in WHOLE if re.match(r"pbt-rl (eval|audit|export|report|runs|resume)\b.* ", c.values[0])]


@pytest.mark.long
@pytest.mark.parametrize("line", OF_RUNS)
def test_a_command_about_a_run_is_carried_out(line, recorded, monkeypatch):
    skip_what_is_not_here(line)
    if "onnx" in line:
        pytest.importorskip("onnxruntime")
    monkeypatch.chdir(recorded.parent.parent)
    name, arguments = split(words(line))
    for word in arguments:
        if re.fullmatch(r"runs/\w+", word) and not (recorded.parent.parent / word).exists():
            shutil.copytree(recorded, recorded.parent.parent / word)
    if "--at" in arguments:
        kept = min(int(path.name.removeprefix("at_")) for path in recorded.glob("checkpoints/at_*"))
        arguments[arguments.index("--at") + 1] = str(kept)
    if name == "resume":  # of a run that has ended: its options are checked, and nothing is trained
        arguments = [arguments[0], *arguments[1:], "--train-for-frames", "3000"]
    assert function(name)(arguments) in (0, None)


def test_the_page_lists_the_options_that_may_change():
    text = (ROOT / "docs" / "operate.md").read_text()
    paragraph = next(p for p in text.split("\n\n") if "all of `--pbt.*`" in p)
    listed, but = (re.findall(r"`--([a-z.-]+)`", part) for part in paragraph.split("except"))
    wanted = {*may_change()}.difference(OF_TRAIN)
    assert sorted(listed) == sorted(name for name in wanted if not name.startswith("pbt."))
    assert {*but} == {name for name in table(Config) if name.startswith("pbt.")} - wanted
