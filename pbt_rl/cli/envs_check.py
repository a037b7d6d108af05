"""`pbt-rl envs check`: look for mistakes in an environment."""

from __future__ import annotations

from dataclasses import dataclass, fields

import tyro

from pbt_rl.cli import EXIT_FAILED
from pbt_rl.cli.check.report import Report, check
from pbt_rl.cli.parse import parse
from pbt_rl.envs.base import EnvSpec
from pbt_rl.envs.first_trial import tried
from pbt_rl.envs.registry import FAMILIES, EnvOptions, keywords, step_seconds
from pbt_rl.errors import environment_code
from pbt_rl.options import build, option, validate, with_groups


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
    timeout_seconds: float = option(0.0, at_least=0, zero="of the family")
    """A step or reset that takes longer is reported as hung. 0: 30 s, or what an engine or a simulator may take."""
    device: str = "cpu"
    """Device of an environment whose rows are tensors, such as cuda:0."""

    def __post_init__(self) -> None:
        validate(self)


def run(arguments: list[str]) -> int:
    """Check an environment."""
    command = parse(CheckCommand, "pbt-rl envs check", arguments)
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
    # torch is imported where the environment is tried.
    from pbt_rl.config import Config
    from pbt_rl.learner.build import check_network
    from pbt_rl.run.network import network_sees
    from pbt_rl.run.recipes import composed

    given = {"env": command.env, "env_option": command.env_option}
    config = build(Config, composed(given, algo=Config.algo, fields=[f.name for f in fields(Config)]))

    def tried_network(spec: EnvSpec) -> list[str]:
        """Make the network of a run, and return what it sees. Raises ConfigError."""
        check_network(config, spec, ["cpu"])
        return network_sees(config, spec)

    return check(
        command.env,
        options,
        command.steps,
        command.seed,
        command.timeout_seconds or step_seconds(command.env, options),
        network=tried_network,
        device=command.device,
    )
