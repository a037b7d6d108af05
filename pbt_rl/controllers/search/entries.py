"""The searches over configurations as controllers: how each is built, and how long it waits for a member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.entry import ControllerEntry, Ingredients, OptionGroups
from pbt_rl.controllers.options import SearchConfig
from pbt_rl.controllers.search.asha import Asha
from pbt_rl.controllers.search.base import RandomSearch, Search, draw_grid, draw_random
from pbt_rl.controllers.search.brackets import Hyperband
from pbt_rl.controllers.search.hypertrick import HyperTrick, SuccessiveHalving
from pbt_rl.errors import require


def _made(
    kind: type[Search], given: Ingredients, search: SearchConfig, frames: int, **own: Any
) -> Controller:
    """Return a search. frames: of one phase. own: settings that only this kind has."""
    return kind(
        given.table,
        given.seed,
        phase_frames=frames,
        min_episodes=given.pbt.min_episodes,
        sampling=draw_grid if search.sampling == "grid" else draw_random,
        **own,
    )


def _hypertrick(given: Ingredients) -> Controller:
    search = given.options.group(SearchConfig)
    own = {"phase_episodes": search.phase_episodes, "most_frames": given.budget_frames}
    return _in_phases(HyperTrick, given, search, **own)


def _successive_halving(given: Ingredients) -> Controller:
    search = given.options.group(SearchConfig)
    slots = given.slots if search.allocation == "static" else None
    return _in_phases(SuccessiveHalving, given, search, slots=slots)


def _in_phases(kind: type[Search], given: Ingredients, search: SearchConfig, **own: Any) -> Controller:
    frames = _phase_frames(given, search, search.phases)
    more = {"phases": search.phases, "eviction_rate": search.eviction_rate}
    return _made(kind, given, search, frames, **more, **own)


def _asha(given: Ingredients) -> Controller:
    return _by_resource(Asha, given, given.options.group(SearchConfig), slots=given.slots)


def _hyperband(given: Ingredients) -> Controller:
    search = given.options.group(SearchConfig)
    return _by_resource(Hyperband, given, search, restart=search.restart)


def _by_resource(kind: type[Search], given: Ingredients, search: SearchConfig, **own: Any) -> Controller:
    frames = _phase_frames(given, search, search.resource)
    return _made(kind, given, search, frames, eta=search.eta, resource=search.resource, **own)


def _random(given: Ingredients) -> Controller:
    search = given.options.group(SearchConfig)
    return _made(RandomSearch, given, search, search.phase_frames * search.phases or given.budget_frames)


def _phase_frames(given: Ingredients, search: SearchConfig, phases: int) -> int:
    """Return the frames of one of this many phases: as given, else a part of the budget. Raises ConfigError."""
    budget = given.budget_frames
    frames = search.phase_frames or budget // phases
    remedy = f"give at least {phases}, one frame a phase, or set --search.phase-frames"
    require(frames > 0, "train-for-frames", budget, remedy)
    return frames


Frames = Callable[[OptionGroups, int], int]
"""(options, budget) -> frames of a member."""


def _patience(units: Callable[[SearchConfig], int]) -> Frames:
    """A member that has ended a phase may train for one more until it can be judged: the patience is two phases."""

    def frames(options: OptionGroups, budget_frames: int) -> int:
        search = options.group(SearchConfig)
        return 2 * max(1, search.phase_frames or budget_frames // units(search))

    return frames


def _full(units: Callable[[SearchConfig], int]) -> Frames:
    def frames(options: OptionGroups, budget_frames: int) -> int:
        search = options.group(SearchConfig)
        return search.phase_frames * units(search) or budget_frames

    return frames


def _phases(search: SearchConfig) -> int:
    return search.phases


def _resource(search: SearchConfig) -> int:
    return search.resource


def _full_hypertrick(options: OptionGroups, budget_frames: int) -> int:
    by_episodes = options.group(SearchConfig).phase_episodes
    return budget_frames if by_episodes else _full(_phases)(options, budget_frames)


def _full_hyperband(options: OptionGroups, budget_frames: int) -> int:
    search, full = options.group(SearchConfig), _full(_resource)(options, budget_frames)
    # Beginning again in every rung, each eta times as long as the one before, adds up to this.
    return full * search.eta // (search.eta - 1) if search.restart else full


def _asha_note(options: OptionGroups, members: int, _budget_frames: int) -> str:
    """Return a hint at a population of which nobody reaches the highest rung, or nothing."""
    search = options.group(SearchConfig)
    rungs = Asha({}, 0, phase_frames=1, eta=search.eta, resource=search.resource).rungs
    least = search.eta ** (len(rungs) - 1)
    reached = next(
        i for i, _ in enumerate(rungs) if members // search.eta ** (i + 1) == 0 or i + 1 == len(rungs)
    )
    return (
        ""
        if members >= least
        else f"note: of {members} members asha promotes one of {search.eta} from each rung, so none trains beyond "
        f"{rungs[reached]} of {search.resource} units: give --num-policies {least} or more, or a smaller "
        f"--search.resource, such as {search.eta**reached}"
    )


def _entry(
    build: Callable[[Ingredients], Controller], patience: Frames, full: Frames, **more: Any
) -> ControllerEntry:
    return ControllerEntry(
        build,
        ("search", "pbt.min_episodes"),
        "searches over configurations that stop the bad ones (--search).",
        searches=True,
        patience_frames=patience,
        full_frames=full,
        **more,
    )


HYPERTRICK = _entry(_hypertrick, _patience(_phases), _full_hypertrick)
SUCCESSIVE_HALVING = _entry(_successive_halving, _patience(_phases), _full(_phases))
HYPERBAND = _entry(_hyperband, _patience(_resource), _full_hyperband)
ASHA = _entry(_asha, _patience(_resource), _full(_resource), note=_asha_note)
RANDOM = _entry(_random, _full(_phases), _full(_phases))
