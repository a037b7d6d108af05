"""Commands about environments: list environments, check an environment, build DeepMind Lab maps before training."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from pbt_rl.cli import EXIT_FAILED, commands
from pbt_rl.cli.check import Report, check
from pbt_rl.envs.first_trial import tried
from pbt_rl.envs.lookup import FAMILIES, EnvOptions, backend_of, keywords, plugins
from pbt_rl.envs.packages import absent
from pbt_rl.errors import ConfigError, RunFailed, environment_code
from pbt_rl.options.declare import option, with_groups
from pbt_rl.options.words import parse


def run(arguments: list[str]) -> int:
    """Run `pbt-rl envs`: list the environments."""
    if arguments in (["--help"], ["-h"]):
        print("usage: pbt-rl envs                  list the environments, and how to install missing ones")
        print("\n".join(f"       {line}" for line in _others()))
        return 0
    if arguments:
        raise ConfigError(f"pbt-rl envs takes no arguments, but got {' '.join(arguments)!r}")
    for family in FAMILIES.values():
        if not family.missing:
            names = family.names()
            print(f"{family.name}/  {family.title}: {len(names)} here, such as --env {family.example}")
            print(_wrapped(names))
        else:
            print(
                f"{family.name}/  {family.title}: missing {', '.join(family.missing)}; {family.install_hint}"
            )
    print("".join(f"{error}\n" for error in FAMILIES.unusable.values()) + absent(), end="")
    print("custom environments: --env module:factory (docs/your-environment.md)")
    print("\n".join(_others()))
    if plugins():
        print(_wrapped(tuple(sorted(plugins()))))
    return 0


def _others() -> list[str]:
    """Format a help line for each command `pbt-rl envs NAME`."""
    return [
        f"{f'pbt-rl {command.name} {command.arguments}':<28} {command.help} ({command.name} --help)"
        for command in commands().values()
        if command.name.startswith("envs ")
    ]


def _wrapped(names: tuple[str, ...]) -> str:
    return textwrap.fill(
        ", ".join(names), 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )


@dataclass(frozen=True)
@with_groups({name: kind for family in FAMILIES.values() for name, kind in family.options.items()})
class CheckCommand:
    """Step an environment as training does, and report its mistakes.

    Exit code 0: no mistakes; 1: mistakes found; 2: the environment cannot be constructed or reset.
    """

    env: str = option(positional=True)
    """Environment: module:factory, or family/name."""
    env_option: tuple[str, ...] = option((), pairs=True)
    """KEY=VALUE: keyword argument of the environment's factory, as in training."""
    steps: int = option(4000, at_least=1)
    """Number of steps, summed over all rows."""
    seed: int = option(0, at_least=0)
    """Seed of the environment."""
    timeout_seconds: float = option(0.0, at_least=0, zero="30 s, or longer for some engines and simulators")
    """Time limit of a construction, reset or step. If it takes longer, a hang is reported."""
    device: str = "cpu"
    """Device of a device simulator, such as cuda:0."""


def run_check(arguments: list[str]) -> int:
    """Run `pbt-rl envs check`."""
    command = parse(CheckCommand, "pbt-rl envs check", arguments)
    groups = [getattr(command, name) for family in FAMILIES.values() for name in family.options]
    families = tuple(group.reproducible() for group in groups)  # equal seeds give equal steps
    options = EnvOptions(families, keywords=keywords(command.env_option))
    with environment_code(command.env):
        report = tried(
            command.env, lambda: _checked(command, options), None, captured=False, when="while it was checked"
        )
    print("\n".join(report.lines()))
    return EXIT_FAILED if report.mistakes else 0


def _checked(command: CheckCommand, options: EnvOptions) -> Report:
    """Check an environment, and the network of a run in this environment."""
    from pbt_rl.config.command import make_config

    return check(
        command.env,
        options,
        command.steps,
        command.seed,
        command.timeout_seconds or backend_of(command.env, options)[0].step_seconds,
        make_config(env=command.env, env_option=command.env_option),
        command.device,
    )


@dataclass(frozen=True)
class DmlabCacheCommand:
    """Build the maps of DeepMind Lab levels before training, in a cache that all processes and runs share.

    Train with --dmlab.level-seeds equal to --level-seeds. Episodes then use only these seeds.
    """

    levels: tuple[str, ...] = option(("dmlab30",), test=bool, remedy="one or more, such as dmlab30")
    """Levels, as written after dmlab/ in --env."""
    level_seeds: int = option(100, at_least=1)
    """Number of seeds per level, from the start of the level's seed pool."""
    steps: int = option(0, at_least=0)
    """Number of random steps after each reset. Some levels build maps during an episode."""
    jobs: int = option(0, at_least=0, zero="one per core")
    """Maximum number of parallel engines."""
    level_cache: str = ""
    """Cache folder. Default: pbt_rl/dmlab in the user's cache folder."""
    level_cache_gb: float = option(10.0, above=0)
    """Maximum size of the cache in gigabytes. When the cache is full, the least recently used maps are deleted."""


def run_dmlab_cache(arguments: list[str]) -> int:
    """Run `pbt-rl dmlab-cache`: build the maps."""
    command = parse(DmlabCacheCommand, "pbt-rl dmlab-cache", arguments)
    from pbt_rl.envs.dmlab.dmlab_options import DmlabOptions
    from pbt_rl.envs.dmlab.maps import MapsFailed, build_maps
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
