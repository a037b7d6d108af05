"""The command line: `pbt-rl train | eval | replay | report | envs | dmlab-cache`. Each imports what it needs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tyro

from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import ConfigError, RunFailed, environment_code, require

if TYPE_CHECKING:
    from pbt_rl.config import Config

USAGE = """usage: pbt-rl COMMAND [OPTIONS]

commands:
  train --env atari/pong ...   train a population (train --help lists every option; --show prints the plan only)
  eval RUN                     play a trained member and print its score
  replay RUN                   decide again what a run decided, and say whether it agrees bit for bit
  report RUN                   draw who descends from whom, schedules, curves...: one HTML page, PNG, CSV, DOT, Newick
  envs                         what can be trained on here, what is missing and how to install it
  envs check ENV               step an environment and say what is wrong with it
  dmlab-cache                  build maps of DeepMind Lab beforehand
"""
EXIT_USER_ERROR, EXIT_FAILED = 2, 1
REPORT_PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
"""Module -> package."""
T = TypeVar("T")


def main() -> None:
    """Entry point of `pbt-rl`."""
    arguments = sys.argv[1:]
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "eval": _eval,
        "replay": _replay,
        "report": _report,
        "envs": _envs,
        "dmlab-cache": _dmlab_cache,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        sys.exit(0 if arguments else EXIT_USER_ERROR)
    if arguments[0] not in commands:
        _fail(f"{arguments[0]!r} is no command: use {', '.join(commands)} (pbt-rl --help)", EXIT_USER_ERROR)
    sys.path.insert(0, "")  # a user's own encoder is found from the working directory
    try:
        code = commands[arguments[0]](arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # as in `pbt-rl train --help | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except (ConfigError, EnvSetupError) as error:
        _fail(str(error), EXIT_USER_ERROR)
    except RunFailed as error:
        _fail(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    sys.exit(code)


def _fail(message: str, code: int) -> None:
    print(f"pbt-rl: {message}", file=sys.stderr)
    sys.exit(code)


# -- train --------------------------------------------------------------------------------------------------


def parse_train(arguments: list[str]) -> tuple[Config, bool]:
    """Return the config of `pbt-rl train ARGUMENTS` and whether only to show it.

    The environment's recipe gives the defaults, over it lies a named recipe; what is on the command line wins.
    """
    from pbt_rl.config import Config
    from pbt_rl.envs.registry import EnvOptions, keywords, recipe
    from pbt_rl.recipes import named

    @dataclass(frozen=True)
    class TrainCommand(Config):
        show: bool = False
        """Print the resolved config and the plan (actors, units, rows, devices, batch) and start nothing."""
        recipe: str = ""
        """Options of a published command line, by name: `dmlab30-pbt` (Sample Factory's DMLab-30 with four agents)."""

    TrainCommand.__doc__ = Config.__doc__
    chosen = dict(named(name)) if (name := _option(arguments, "--recipe")) is not None else {}
    env = _option(arguments, "--env") or chosen.pop("env", None)
    default: Any = tyro.MISSING_NONPROP
    if env is not None:
        start = TrainCommand(env=str(env))
        with environment_code(start.env):
            values = recipe(start.env, EnvOptions(keywords=keywords(_all_options(arguments, "--env-option"))))
        chosen.pop("env", None)
        default = apply_recipe(start, values | chosen)
    elif not {"-h", "--help"} & set(arguments):
        raise ConfigError(
            "--env is missing: give it as family/name, such as atari/pong, or module:factory; see `pbt-rl envs`"
        )
    command = _parse(TrainCommand, "pbt-rl train", _switches(arguments), default)
    fields = {f.name: getattr(command, f.name) for f in dataclasses.fields(Config)}
    return Config(**fields), command.show


def _parse(kind: type[T], prog: str, arguments: list[str], default: Any = tyro.MISSING_NONPROP) -> T:
    """Parse with tyro. What our own classes say against a value is raised as they said it, not in tyro's frame."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            command: T = tyro.cli(kind, prog=prog, args=arguments, default=default)
            return command
    except SystemExit as end:
        cause: BaseException | None = end
        while cause is not None:
            if isinstance(cause, ConfigError | EnvSetupError):
                raise cause from None
            cause = cause.__context__
        print(said.getvalue(), end="", file=sys.stderr)
        raise


def _switches(arguments: list[str]) -> list[str]:
    """Accept `--pbt.enabled False` for `--pbt.no-enabled`, and `--show true` for `--show`."""
    result: list[str] = []
    for argument in arguments:
        word = argument.lower()
        if word not in ("true", "false") or not result or not result[-1].startswith("--"):
            result.append(argument)
        elif word == "false":
            path, _, name = result[-1].removeprefix("--").rpartition(".")
            result[-1] = f"--{path}{'.' if path else ''}no-{name}"
    return result


def _option(arguments: list[str], name: str) -> str | None:
    return next(iter(_all_options(arguments, name)), None)


def _all_options(arguments: list[str], name: str) -> list[str]:
    found = []
    for i, argument in enumerate(arguments):
        if argument == name and i + 1 < len(arguments):
            found.append(arguments[i + 1])
        elif argument.startswith(f"{name}="):
            found.append(argument.partition("=")[2])
    return found


def apply_recipe(config: Any, values: dict[str, object]) -> Any:
    """Return the config with dotted fields replaced: {"learner.rollout": 32, ...}."""
    nested: dict[str, dict[str, object]] = {}
    flat: dict[str, object] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            flat[head] = value
    parts = {head: dataclasses.replace(getattr(config, head), **inner) for head, inner in nested.items()}
    return dataclasses.replace(config, **flat, **parts)


def _train(arguments: list[str]) -> int:
    config, show = parse_train(arguments)
    from pbt_rl.plan import Machine
    from pbt_rl.record.folder import to_json
    from pbt_rl.run.describe import describe_plan
    from pbt_rl.run.resolved import ResolvedRun
    from pbt_rl.run.supervisor import train

    if show:
        facts = ResolvedRun.resolve(config, Machine.here())
        facts.controller()
        print(json.dumps(to_json(config), indent=2))
        print("\n".join(describe_plan(facts)))
        return 0
    return train(config)


# -- eval ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvalCommand:
    """Play a trained member with its own weights and print its true objective."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, such as runs/demo."""
    member: str = "best"
    """`best`, or the id of a member whose weights were saved."""
    episodes: int = 10
    """Whole episodes to play."""
    video: Path | None = None
    """Write the first episode as a video (.mp4 or .gif)."""
    seed: int = 0
    """Seed of environments and actions."""
    greedy: bool = False
    """Take the most probable action instead of sampling."""
    against: str = ""
    """Play games against others, in every seat equally often, and print who won: `random`; the folder of a run, or
    FOLDER@FRAMES for what it kept by --save-every-frames; or a policy of your own as module:factory."""


def _eval(arguments: list[str]) -> int:
    command = _parse(EvalCommand, "pbt-rl eval", arguments)
    if command.against:
        from pbt_rl.play.against import evaluate_against

        require(command.video is None, "video", command.video, "leave it out with --against")
        evaluate_against(
            command.run,
            command.member,
            command.against,
            command.episodes,
            command.seed,
            greedy=command.greedy,
        )
        return 0
    from pbt_rl.play.evaluate import evaluate

    evaluate(
        command.run, command.member, command.episodes, command.video, command.seed, greedy=command.greedy
    )
    return 0


# -- replay, report -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplayCommand:
    """Show a run's recorded reports to a fresh controller, and compare what it decides with the record, bit for bit."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, such as runs/demo."""


def _replay(arguments: list[str]) -> int:
    command = _parse(ReplayCommand, "pbt-rl replay", arguments)
    from pbt_rl.run.audit import replay

    return replay(command.run)


@dataclass(frozen=True)
class ReportCommand:
    """Draw a run, finished or not: one HTML page with everything inside, PNG files, CSV, DOT and Newick."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, such as runs/demo."""
    out: Path | None = None
    """Folder to write to; default: `report` in the run's folder."""


def _report(arguments: list[str]) -> int:
    command = _parse(ReportCommand, "pbt-rl report", arguments)
    from importlib.util import find_spec

    missing = [name for module, name in REPORT_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ConfigError(f'pbt-rl report needs {" and ".join(missing)}: pip install "pbt-rl[report]"')
    from pbt_rl.report.write import write_report

    for path in write_report(command.run, command.out or command.run / "report"):
        print(path)
    return 0


# -- envs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckCommand:
    """Step an environment as training would, and say what is wrong with it.

    Exit code 0: nothing; 1: mistakes were found; 2: it cannot be made or reset.
    """

    env: tyro.conf.Positional[str]
    """Environment: module:factory, or family/name."""
    env_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """key=value for its maker, as in training."""
    steps: int = 4000
    """Steps to take."""
    seed: int = 0
    """Seed of the environment."""
    timeout_seconds: float = 30.0
    """A step or reset that takes longer hangs."""

    def __post_init__(self) -> None:
        for name in ("steps", "timeout_seconds"):
            value = getattr(self, name)
            require(value > 0, name.replace("_", "-"), value, "give a number above 0")
        require(self.seed >= 0, "seed", self.seed, "give 0 or more")


def _check_env(arguments: list[str]) -> int:
    command = _parse(CheckCommand, "pbt-rl envs check", arguments)
    from pbt_rl.envs.check import check
    from pbt_rl.envs.dmlab.options import DmlabOptions
    from pbt_rl.envs.registry import EnvOptions, keywords

    options = EnvOptions(dmlab=DmlabOptions(background_resets=False), keywords=keywords(command.env_option))
    with environment_code(command.env):
        report = check(command.env, options, command.steps, command.seed, command.timeout_seconds)
    print("\n".join(report.lines()))
    return EXIT_FAILED if report.mistakes else 0


def _envs(arguments: list[str]) -> int:
    if arguments[:1] == ["check"]:
        return _check_env(arguments[1:])
    if arguments:
        raise ConfigError(f"pbt-rl envs takes nothing or `check ENV`, not {' '.join(arguments)!r}")
    from pbt_rl.envs.registry import families, plugins

    for family in families():
        if family.available:
            print(f"{family.name}/  {family.title}: {len(family.names)} here, such as --env {family.example}")
            print(_wrapped(family.names))
        else:
            print(
                f"{family.name}/  {family.title}: missing {', '.join(family.missing)}; {family.install_hint}"
            )
    print(
        "your own  --env module:factory (docs/adding-an-environment.md); `pbt-rl envs check` looks for mistakes"
    )
    if plugins():
        print(_wrapped(plugins()))
    return 0


def _wrapped(names: tuple[str, ...]) -> str:
    import textwrap

    return textwrap.fill(", ".join(names), 100, initial_indent="    ", subsequent_indent="    ")


# -- dmlab-cache --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DmlabCacheCommand:
    """Build the maps of DeepMind Lab's levels before training, into the cache that all processes and runs share.

    Train with the same --dmlab.level-seeds then: episodes draw their seeds from those whose maps are there.
    """

    levels: tuple[str, ...] = ("dmlab30",)
    """Levels, as after dmlab/ in --env."""
    level_seeds: int = 100
    """Seeds of each level: the first so many of its pool."""
    steps: int = 0
    """Random steps after each reset: some levels build more maps while they are played."""
    jobs: int = 0
    """Engines that work at once; 0: one a core."""
    level_cache: str = ""
    """Folder; empty: pbt_rl/dmlab in the user's cache folder."""
    level_cache_gb: float = 10.0
    """Size of the folder; what was used longest ago is removed."""


def _dmlab_cache(arguments: list[str]) -> int:
    command = _parse(DmlabCacheCommand, "pbt-rl dmlab-cache", arguments)
    from pbt_rl.envs.dmlab.maps import MapsFailed, build_maps
    from pbt_rl.envs.dmlab.options import DmlabOptions
    from pbt_rl.plan import available_cpus

    options = DmlabOptions(
        level_seeds=command.level_seeds,
        level_cache=command.level_cache,
        level_cache_gb=command.level_cache_gb,
    )
    try:
        failed = build_maps(command.levels, options, command.steps, command.jobs or available_cpus())
    except MapsFailed as error:
        raise RunFailed(str(error)) from None
    return EXIT_FAILED if failed else 0


if __name__ == "__main__":
    main()
