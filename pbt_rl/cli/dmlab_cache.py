"""`pbt-rl dmlab-cache`: build maps of DeepMind Lab."""

from __future__ import annotations

from dataclasses import dataclass

from pbt_rl.cli import EXIT_FAILED
from pbt_rl.cli.parse import parse
from pbt_rl.errors import RunFailed
from pbt_rl.options import option, validate


@dataclass(frozen=True)
class DmlabCacheCommand:
    """Build the maps of DeepMind Lab's levels before training, into the cache that all processes and runs share.

    Train with the same --dmlab.level-seeds then: episodes draw their seeds from those with built maps.
    """

    levels: tuple[str, ...] = ("dmlab30",)
    """Levels, as after dmlab/ in --env."""
    level_seeds: int = option(100, at_least=1)
    """Seeds per level: this many from the start of its pool."""
    steps: int = option(0, at_least=0)
    """Random steps after each reset: some levels build more maps while they are played."""
    jobs: int = option(0, at_least=0, zero="one per core")
    """Engines that work at once."""
    level_cache: str = ""
    """Folder; empty: pbt_rl/dmlab in the user's cache folder."""
    level_cache_gb: float = option(10.0, above=0)
    """Size of the folder in gigabytes; the least recently used maps are removed."""

    def __post_init__(self) -> None:
        validate(self)


def run(arguments: list[str]) -> int:
    """Build the maps."""
    command = parse(DmlabCacheCommand, "pbt-rl dmlab-cache", arguments)
    from pbt_rl.envs.dmlab.maps import MapsFailed, build_maps
    from pbt_rl.envs.dmlab.options import DmlabOptions
    from pbt_rl.run.plan import available_cpus

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
