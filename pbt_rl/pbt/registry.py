"""The controllers that `--controller` names. A new controller is one file and one entry here.

One of the user's own needs no entry: `--controller module:Class` (`pbt_rl.pbt.own`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbt_rl.errors import require
from pbt_rl.pbt.controllers import PbtController, StaticController
from pbt_rl.pbt.decisions import Controller
from pbt_rl.pbt.evaluation import Evaluation
from pbt_rl.pbt.events import Event
from pbt_rl.pbt.exploit.registry import build_exploit, least_members
from pbt_rl.pbt.explore.registry import build_explore
from pbt_rl.pbt.hypers import HyperSpec
from pbt_rl.pbt.ipbt.controller import Ipbt
from pbt_rl.pbt.mf_pbt.controller import MfPbt, usual_frequencies
from pbt_rl.pbt.options import PbtConfig
from pbt_rl.pbt.own import build_own_controller, is_search
from pbt_rl.pbt.ready.registry import build_ready
from pbt_rl.pbt.schedule import build_schedule
from pbt_rl.pbt.search.asha import Asha
from pbt_rl.pbt.search.draws import Sampling, draw_grid, draw_random
from pbt_rl.pbt.search.hyperband import Hyperband
from pbt_rl.pbt.search.hypertrick import HyperTrick, SuccessiveHalving
from pbt_rl.pbt.search.options import ScheduleConfig, SearchConfig
from pbt_rl.pbt.search.random_search import RandomSearch

PATIENCE_PERIODS = 10


@dataclass(frozen=True)
class Ingredients:
    """All that a controller is built from."""

    table: Mapping[str, HyperSpec]
    """All values of a member; those of them that are tuned change."""
    seed: int
    members: int
    slots: int
    """Members that train at the same time."""
    budget_frames: int
    """Frames of a member that trains to the end."""
    pbt: PbtConfig
    search: SearchConfig
    schedule: ScheduleConfig
    settings: Sequence[str] = ()
    """NAME=VALUE, of a controller of the user's own."""
    events: Sequence[Event] = ()
    """Journal of the recorded run, if the controller follows one."""


@dataclass(frozen=True)
class ControllerEntry:
    """How a controller is built."""

    build: Callable[[Ingredients], Controller]
    """Raises ConfigError."""
    options: tuple[str, ...]
    """Groups of options that it reads."""
    searches: bool = False
    """It draws configurations and gives them up; it decides how far each may train."""
    follows_a_run: bool = False
    """It is built from the journal of a recorded run."""


def _pbt(given: Ingredients) -> Controller:
    pbt = given.pbt
    if not pbt.enabled:
        return StaticController(given.table)
    least = least_members(pbt.exploit)
    require(
        given.members >= least,
        "pbt.exploit",
        pbt.exploit,
        f"it compares at least {least} members; give --num-policies {least} or another rule",
    )
    return PbtController(given.table, given.seed, **_rules(given), copy=pbt.copy)


def _mf_pbt(given: Ingredients) -> Controller:
    pbt = given.pbt
    if not pbt.enabled:
        return StaticController(given.table)
    frequencies = pbt.frequencies or usual_frequencies(given.members)
    groups = len(frequencies)
    least = groups * max(4, least_members(pbt.exploit))
    require(
        given.members >= least,
        "controller",
        "mf-pbt",
        f"{groups} groups (--pbt.frequencies) need at least {least} members (--num-policies)",
    )
    require(
        pbt.ready == "synchronous", "pbt.ready", pbt.ready, "mf-pbt counts rounds of all: use synchronous"
    )
    require(
        pbt.exploit != "backtrack",
        "pbt.exploit",
        pbt.exploit,
        "its elites are those of all members, and groups of mf-pbt select among themselves: use another rule",
    )
    require(pbt.copy == "both", "pbt.copy", pbt.copy, "mf-pbt itself chooses what is copied: use both")
    return MfPbt(
        given.table,
        given.seed,
        **_rules(given),
        frequencies=frequencies,
        migrant_hypers=pbt.migrant_hypers,
    )


def _ipbt(given: Ingredients) -> Controller:
    pbt = given.pbt
    if not pbt.enabled:
        return StaticController(given.table)
    least = max(4, least_members(pbt.exploit))
    require(
        given.members >= least,
        "controller",
        "ipbt",
        f"it needs at least {least} members (--num-policies): the weights of the best quarter go on",
    )
    require(
        pbt.ready == "synchronous",
        "pbt.ready",
        pbt.ready,
        "ipbt restarts all members at once: use synchronous",
    )
    require(pbt.copy == "both", "pbt.copy", pbt.copy, "a restart of ipbt copies weights and values: use both")
    return Ipbt(given.table, given.seed, **_rules(given), budget_frames=given.budget_frames)


def _rules(given: Ingredients) -> dict[str, Any]:
    pbt = given.pbt
    return {
        "ready": build_ready(pbt),
        "exploit": build_exploit(pbt),
        "explore": build_explore(pbt, given.table),
        "evaluation": _evaluation(given),
    }


def _evaluation(given: Ingredients) -> Evaluation:
    pbt, name = given.pbt, "pbt.evaluate-episodes"
    if pbt.evaluate_episodes == 0:
        return Evaluation()
    episodes = pbt.evaluate_episodes
    require(
        pbt.ready == "synchronous",
        name,
        episodes,
        "all members are evaluated together: use --pbt.ready synchronous",
    )
    require(
        given.slots >= given.members,
        name,
        episodes,
        "members that take turns cannot be evaluated: leave out --slots",
    )
    require(
        pbt.min_episodes <= episodes <= pbt.objective_episodes,
        name,
        episodes,
        f"give --pbt.min-episodes, {pbt.min_episodes}, to --pbt.objective-episodes, {pbt.objective_episodes}",
    )
    return Evaluation(episodes, PATIENCE_PERIODS * pbt.period_frames)


def _schedule(given: Ingredients) -> Controller:
    options = given.schedule
    return build_schedule(
        given.events, given.table, options.run, options.member, hold_final=options.hold_final
    )


def _hypertrick(given: Ingredients) -> Controller:
    search = given.search
    return HyperTrick(
        given.table,
        given.seed,
        phase_frames=_phase_frames(given, search.phases),
        phases=search.phases,
        eviction_rate=search.eviction_rate,
        phase_episodes=search.phase_episodes,
        most_frames=given.budget_frames,
        min_episodes=given.pbt.min_episodes,
        sampling=_sampling(search),
    )


def _asha(given: Ingredients) -> Controller:
    search = given.search
    return Asha(
        given.table,
        given.seed,
        phase_frames=_phase_frames(given, search.resource),
        eta=search.eta,
        resource=search.resource,
        slots=given.slots,
        min_episodes=given.pbt.min_episodes,
        sampling=_sampling(search),
    )


def _successive_halving(given: Ingredients) -> Controller:
    search = given.search
    return SuccessiveHalving(
        given.table,
        given.seed,
        phase_frames=_phase_frames(given, search.phases),
        phases=search.phases,
        eviction_rate=search.eviction_rate,
        slots=given.slots if search.allocation == "static" else None,
        min_episodes=given.pbt.min_episodes,
        sampling=_sampling(search),
    )


def _hyperband(given: Ingredients) -> Controller:
    search = given.search
    return Hyperband(
        given.table,
        given.seed,
        phase_frames=_phase_frames(given, search.resource),
        eta=search.eta,
        resource=search.resource,
        restart=search.restart,
        min_episodes=given.pbt.min_episodes,
        sampling=_sampling(search),
    )


def _random(given: Ingredients) -> Controller:
    search = given.search
    return RandomSearch(
        given.table,
        given.seed,
        phase_frames=search.phase_frames * search.phases or given.budget_frames,
        min_episodes=given.pbt.min_episodes,
        sampling=_sampling(search),
    )


def patience_frames(controller: str, pbt: PbtConfig, search: SearchConfig, budget_frames: int) -> int:
    """Return how long a changed member is not judged because one of its environments plays a very long episode.

    `PATIENCE_PERIODS` periods of PBT, so that one that never ends does not exclude the member for ever. In a search a
    member that has ended a phase may train for one phase more until it can be judged (`Search`): two phases. A random
    search waits for the budget alone.
    """
    if not controller_entry(controller).searches:
        return PATIENCE_PERIODS * pbt.period_frames
    if controller == "random":
        return search.phase_frames * search.phases or budget_frames
    phases = search.resource if controller in ("hyperband", "asha") else search.phases
    return 2 * max(1, search.phase_frames or budget_frames // phases)


def _phase_frames(given: Ingredients, phases: int) -> int:
    """Return the frames of one of this many phases: as given, else a part of the budget. Raises ConfigError."""
    budget = given.budget_frames
    frames = given.search.phase_frames or budget // phases
    remedy = f"give at least {phases}, one frame a phase, or set --search.phase-frames"
    require(frames > 0, "train-for-frames", budget, remedy)
    return frames


def _sampling(search: SearchConfig) -> Sampling:
    return draw_grid if search.sampling == "grid" else draw_random


CONTROLLERS: dict[str, ControllerEntry] = {
    "pbt": ControllerEntry(_pbt, ("pbt",)),
    "mf-pbt": ControllerEntry(_mf_pbt, ("pbt",)),
    "ipbt": ControllerEntry(_ipbt, ("pbt",)),
    "hypertrick": ControllerEntry(_hypertrick, ("search", "pbt.min_episodes"), searches=True),
    "successive-halving": ControllerEntry(_successive_halving, ("search", "pbt.min_episodes"), searches=True),
    "hyperband": ControllerEntry(_hyperband, ("search", "pbt.min_episodes"), searches=True),
    "asha": ControllerEntry(_asha, ("search", "pbt.min_episodes"), searches=True),
    "random": ControllerEntry(_random, ("search", "pbt.min_episodes"), searches=True),
    "schedule": ControllerEntry(_schedule, ("schedule",), follows_a_run=True),
}
"""Name -> controller. All of them read `--pbt.tune`, and all but the schedule `--pbt.min-episodes`."""


def controller_entry(name: str) -> ControllerEntry:
    """Return how a controller is built, also one of the user's own (`module:Class`), which is imported for that."""
    if ":" not in name:
        return CONTROLLERS[name]
    return ControllerEntry(
        lambda given: build_own_controller(name, given.table, given.seed, given.settings),
        (),
        searches=is_search(name),
    )
