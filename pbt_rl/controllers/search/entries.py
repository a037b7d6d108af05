"""The searches over configurations as controllers: how each is built, and how long it waits for a member."""

from __future__ import annotations

from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.entry import ControllerEntry, Ingredients, OptionGroups
from pbt_rl.controllers.options import SearchConfig
from pbt_rl.controllers.search.asha import Asha
from pbt_rl.controllers.search.base import RandomSearch, Sampling, draw_grid, draw_random
from pbt_rl.controllers.search.brackets import Hyperband
from pbt_rl.controllers.search.hypertrick import HyperTrick, SuccessiveHalving
from pbt_rl.errors import require


def _hypertrick(given: Ingredients) -> Controller:
    search = _search(given)
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
    search = _search(given)
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
    search = _search(given)
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
    search = _search(given)
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
    search = _search(given)
    return RandomSearch(
        given.table,
        given.seed,
        phase_frames=search.phase_frames * search.phases or given.budget_frames,
        min_episodes=given.pbt.min_episodes,
        sampling=_sampling(search),
    )


def _phase_frames(given: Ingredients, phases: int) -> int:
    """Return the frames of one of this many phases: as given, else a part of the budget. Raises ConfigError."""
    budget = given.budget_frames
    frames = _search(given).phase_frames or budget // phases
    remedy = f"give at least {phases}, one frame a phase, or set --search.phase-frames"
    require(frames > 0, "train-for-frames", budget, remedy)
    return frames


def _sampling(search: SearchConfig) -> Sampling:
    return draw_grid if search.sampling == "grid" else draw_random


def _search(given: Ingredients) -> SearchConfig:
    return given.options.group(SearchConfig)


# A member that has ended a phase may train for one phase more until it can be judged: the patience is two phases.


def _patience_of_phases(options: OptionGroups, budget_frames: int) -> int:
    search = options.group(SearchConfig)
    return 2 * max(1, search.phase_frames or budget_frames // search.phases)


def _patience_of_resource(options: OptionGroups, budget_frames: int) -> int:
    search = options.group(SearchConfig)
    return 2 * max(1, search.phase_frames or budget_frames // search.resource)


def _full_phases(options: OptionGroups, budget_frames: int) -> int:
    search = options.group(SearchConfig)
    return search.phase_frames * search.phases or budget_frames


def _full_hypertrick(options: OptionGroups, budget_frames: int) -> int:
    return (
        budget_frames if options.group(SearchConfig).phase_episodes else _full_phases(options, budget_frames)
    )


def _full_resource(options: OptionGroups, budget_frames: int) -> int:
    search = options.group(SearchConfig)
    return search.phase_frames * search.resource or budget_frames


def _full_hyperband(options: OptionGroups, budget_frames: int) -> int:
    search, full = options.group(SearchConfig), _full_resource(options, budget_frames)
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


_OPTIONS = ("search", "pbt.min_episodes")
_HELP = "searches over configurations that stop the bad ones (--search)."
HYPERTRICK = ControllerEntry(
    _hypertrick,
    _OPTIONS,
    _HELP,
    searches=True,
    patience_frames=_patience_of_phases,
    full_frames=_full_hypertrick,
)
SUCCESSIVE_HALVING = ControllerEntry(
    _successive_halving,
    _OPTIONS,
    _HELP,
    searches=True,
    patience_frames=_patience_of_phases,
    full_frames=_full_phases,
)
HYPERBAND = ControllerEntry(
    _hyperband,
    _OPTIONS,
    _HELP,
    searches=True,
    patience_frames=_patience_of_resource,
    full_frames=_full_hyperband,
)
ASHA = ControllerEntry(
    _asha,
    _OPTIONS,
    _HELP,
    searches=True,
    note=_asha_note,
    patience_frames=_patience_of_resource,
    full_frames=_full_resource,
)
RANDOM = ControllerEntry(
    _random, _OPTIONS, _HELP, searches=True, patience_frames=_full_phases, full_frames=_full_phases
)
