"""Builds the controller that the options name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pbt_rl.errors import require
from pbt_rl.pbt.controllers import PbtController, StaticController
from pbt_rl.pbt.decisions import (
    Controller,
)
from pbt_rl.pbt.exploit.base import Exploit
from pbt_rl.pbt.explore.rules import Explore
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.ready import Ready
from pbt_rl.pbt.rules import LEAST_MEMBERS, make_exploit, make_explore, make_ready
from pbt_rl.pbt.search.draws import draw_grid, draw_random
from pbt_rl.pbt.search.hyperband import Hyperband
from pbt_rl.pbt.search.hypertrick import HyperTrick, SuccessiveHalving
from pbt_rl.pbt.search.random_search import GridSearch, RandomSearch
from pbt_rl.pbt.tuning import chosen

if TYPE_CHECKING:
    from pbt_rl.config import Config


def build_controller(config: Config, table: Mapping[str, HyperSpec], seed: int) -> Controller:
    """Controller that the options ask for (`--controller`).

    table: `hyper_table(...) | shaping_table(...)`, with bounds as tight as the run needs them; `--pbt.tune` chooses.
    Raises ConfigError, for example if `pbt.tune` holds a name that is not in the table.
    """
    pbt = config.pbt
    table = chosen(table, pbt.tune)
    tuned = {name: spec for name, spec in table.items() if spec.tuned}
    if config.controller == "schedule":
        from pbt_rl.pbt.schedule import build_replay  # noqa: PLC0415 - what is not asked for is not imported

        return build_replay(config, table, seed)
    if config.controller not in ("pbt", "mf-pbt"):
        from pbt_rl.run.controllers import build_search  # noqa: PLC0415 - what is not asked for is not imported

        return build_search(config, table, seed)
    if not pbt.enabled:
        return StaticController(table)
    least = LEAST_MEMBERS.get(pbt.exploit, 1)
    require(
        config.num_policies >= least,
        "pbt.exploit",
        pbt.exploit,
        f"it compares at least {least} members; give --num-policies {least} or another rule",
    )
    ready, exploit, explore = make_ready(pbt), make_exploit(pbt), make_explore(pbt, table, tuned)
    if config.controller == "pbt":
        return PbtController(table, seed, ready=ready, exploit=exploit, explore=explore, copy=pbt.copy)
    return _multi_frequency(config, table, seed, ready=ready, exploit=exploit, explore=explore)


def _multi_frequency(
    config: Config,
    table: Mapping[str, HyperSpec],
    seed: int,
    *,
    ready: Ready,
    exploit: Exploit,
    explore: Explore,
) -> Controller:
    from pbt_rl.pbt.mf_pbt import MfPbt  # noqa: PLC0415 - it imports this module

    pbt = config.pbt
    groups = len(pbt.frequencies)
    least = groups * max(4, LEAST_MEMBERS.get(pbt.exploit, 1))
    require(
        config.num_policies >= least,
        "controller",
        "mf-pbt",
        f"{groups} groups (--pbt.frequencies) need at least {least} members (--num-policies)",
    )
    require(
        pbt.ready == "synchronous", "pbt.ready", pbt.ready, "mf-pbt counts rounds of all: use synchronous"
    )
    require(pbt.copy == "both", "pbt.copy", pbt.copy, "mf-pbt says itself what is copied: use both")
    return MfPbt(
        table,
        seed,
        ready=ready,
        exploit=exploit,
        explore=explore,
        frequencies=pbt.frequencies,
        migrant_hypers=pbt.migrant_hypers,
    )


def build_search(config: Config, table: Mapping[str, HyperSpec], seed: int) -> Controller:
    """Search that `--controller` and `--search` ask for.

    table: all values of a member. Searched are those that `--pbt.tune` names, else those that are `tuned`. Raises
    ConfigError.
    """
    table = chosen(table, config.pbt.tune)
    search, kind = config.search, config.controller
    longest = {"hyperband": search.resource, "random": 1}.get(kind, search.phases)
    phase_frames = search.phase_frames or config.train_for_frames // longest
    require(
        phase_frames > 0,
        "train-for-frames",
        config.train_for_frames,
        f"give at least {longest}, one frame a phase, or set --search.phase-frames",
    )
    min_episodes = config.pbt.min_episodes
    sampling = draw_grid if search.sampling == "grid" else draw_random
    if kind == "hypertrick":
        return HyperTrick(
            table,
            seed,
            phase_frames=phase_frames,
            phases=search.phases,
            eviction_rate=search.eviction_rate,
            min_episodes=min_episodes,
            sampling=sampling,
        )
    if kind == "successive-halving":
        slots = config.slots or config.num_policies
        return SuccessiveHalving(
            table,
            seed,
            phase_frames=phase_frames,
            phases=search.phases,
            eviction_rate=search.eviction_rate,
            slots=min(slots, config.num_policies) if search.allocation == "static" else None,
            min_episodes=min_episodes,
            sampling=sampling,
        )
    if kind == "hyperband":
        return Hyperband(
            table,
            seed,
            phase_frames=phase_frames,
            eta=search.eta,
            resource=search.resource,
            restart=search.restart,
            min_episodes=min_episodes,
            sampling=sampling,
        )
    assert kind == "random", kind
    frames = search.phase_frames * search.phases or config.train_for_frames
    if search.sampling == "grid":
        return GridSearch(table, seed, frames=frames, min_episodes=min_episodes)
    return RandomSearch(table, seed, frames=frames, min_episodes=min_episodes)
