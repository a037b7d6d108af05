"""`pbt-rl envs`: list the environments; `pbt-rl envs check`: look for mistakes in one."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import tyro

from pbt_rl.cli import EXIT_FAILED
from pbt_rl.cli.parse import parse
from pbt_rl.envs.registry import FAMILIES, EnvOptions, families, plugins
from pbt_rl.errors import ConfigError, environment_code
from pbt_rl.options import option, validate, with_groups

if TYPE_CHECKING:
    from pbt_rl.envs.check import Report

USAGE = """usage: pbt-rl envs                  list the environments, what is missing and how to install it
       pbt-rl envs check ENV        step an environment and report its mistakes (envs check --help)
"""


@dataclass(frozen=True)
@with_groups({name: kind for family in FAMILIES.values() for name, kind in family.options.items()})
class CheckCommand:
    """Step an environment as training does, and report its mistakes.

    Exit code 0: none; 1: mistakes were found; 2: it cannot be made or reset.
    """

    env: tyro.conf.Positional[str]
    """Environment: module:factory, or family/name."""
    env_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """key=value for its maker, as in training."""
    steps: int = option(4000, at_least=1)
    """Steps to take."""
    seed: int = option(0, at_least=0)
    """Seed of the environment."""
    timeout_seconds: float = option(30.0, above=0)
    """A step or reset that takes longer is reported as hung. DeepMind Lab compiles maps for 20 s and more: give 120."""

    def __post_init__(self) -> None:
        validate(self)


def run(arguments: list[str]) -> int:
    """List the environments, or check one."""
    if arguments[:1] == ["check"]:
        return _check(arguments[1:])
    if arguments in (["--help"], ["-h"]):
        print(USAGE, end="")
        return 0
    if arguments:
        raise ConfigError(f"pbt-rl envs takes nothing or `check ENV`, not {' '.join(arguments)!r}")
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


def _check(arguments: list[str]) -> int:
    command = parse(CheckCommand, "pbt-rl envs check", arguments)
    from pbt_rl.envs.first_trial import tried
    from pbt_rl.envs.registry import keywords

    groups = [getattr(command, name) for family in FAMILIES.values() for name in family.options]
    families = tuple(group.reproducible() for group in groups)  # else equal seeds give other steps
    options = EnvOptions(families, keywords=keywords(command.env_option))
    with environment_code(command.env):
        report = tried(
            command.env,
            lambda: _checked(command, options),
            None,
            captured=False,
            when="while it was checked",
        )
    print("\n".join(report.lines()))
    return EXIT_FAILED if report.mistakes else 0


def _checked(command: CheckCommand, options: EnvOptions) -> Report:
    """Check the environment, and that a run on it can make its network."""
    from pbt_rl.config import Config
    from pbt_rl.envs.check import check
    from pbt_rl.options import build
    from pbt_rl.recipes import composed
    from pbt_rl.run.resolved import tried_network

    given = {"env": command.env, "env_option": command.env_option}
    config = build(Config, composed(given, algo=Config.algo, fields=[f.name for f in fields(Config)]))
    return check(
        command.env,
        options,
        command.steps,
        command.seed,
        command.timeout_seconds,
        network=lambda spec: tried_network(config, spec),
    )


def _wrapped(names: tuple[str, ...]) -> str:
    return textwrap.fill(", ".join(names), 100, initial_indent="    ", subsequent_indent="    ")
