"""Registry entries of the searches: their constructors and time limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.entry import ControllerContext, ControllerEntry, OptionGroups
from pbt_rl.controllers.options import SearchConfig
from pbt_rl.controllers.search.asha import Asha
from pbt_rl.controllers.search.base import RandomSearch, Search, draw_grid, draw_random
from pbt_rl.controllers.search.brackets import Hyperband
from pbt_rl.controllers.search.hypertrick import HyperTrick, SuccessiveHalving
from pbt_rl.errors import require


def _entry(
    kind: type[Search],
    phases: Callable[[SearchConfig], int],
    own: Callable[[SearchConfig, ControllerContext], dict[str, Any]],
    *,
    once: bool = False,
    full: Callable[[SearchConfig, int, int], int] = lambda _search, _budget, frames: frames,
    **more: Any,
) -> ControllerEntry:
    """Build the registry entry of a search.

    phases: of a member that is never stopped. own: extra settings of this kind. once: such a member is judged only at
    its end. full: (options, budget, frames of such a member) -> the most frames that a member trains.
    """

    def whole(search: SearchConfig, budget: int) -> int:
        return search.phase_frames * phases(search) or budget

    def phase(search: SearchConfig, budget: int) -> int:
        return whole(search, budget) if once else search.phase_frames or budget // phases(search)

    def build(given: ControllerContext) -> Controller:
        search, budget = given.options.group(SearchConfig), given.budget_frames
        frames = phase(search, budget)
        remedy = f"give at least {phases(search)}, one frame per phase, or set --search.phase-frames"
        require(frames > 0, "train-for-frames", budget, remedy)
        return kind(
            given.table,
            given.seed,
            phase_frames=frames,
            min_episodes=given.pbt.min_episodes,
            sampling=draw_grid if search.sampling == "grid" else draw_random,
            **own(search, given),
        )

    def patience_frames(options: OptionGroups, budget: int) -> int:
        """Return the episode timeout in frames: two phases, because a member may need one extra phase."""
        search = options.group(SearchConfig)
        return max(1, phase(search, budget)) * (1 if once else 2)

    def full_frames(options: OptionGroups, budget: int) -> int:
        search = options.group(SearchConfig)
        return full(search, budget, whole(search, budget))

    return ControllerEntry(
        build,
        ("search", "pbt.min_episodes"),
        "searches over configurations, which stop bad ones early (--search).",
        searches=True,
        patience_frames=patience_frames,
        full_frames=full_frames,
        **more,
    )


def _asha_note(options: OptionGroups, members: int, _budget_frames: int) -> str:
    """Return a warning about a population too small for the highest rung, or ""."""
    search = options.group(SearchConfig)
    rungs = Asha({}, 0, phase_frames=1, eta=search.eta, resource=search.resource).rungs
    least = search.eta ** (len(rungs) - 1)
    reached = next(
        i for i, _ in enumerate(rungs) if members // search.eta ** (i + 1) == 0 or i + 1 == len(rungs)
    )
    return (
        ""
        if members >= least
        else f"note: asha promotes one of {search.eta} members from each rung, so with {members} members none trains "
        f"beyond {rungs[reached]} of {search.resource} units: give --num-policies {least} or more, or a smaller "
        f"--search.resource, such as {search.eta**reached}"
    )


HYPERTRICK = _entry(
    HyperTrick,
    lambda search: search.phases,
    lambda search, given: {
        "phases": search.phases,
        "eviction_rate": search.eviction_rate,
        "phase_episodes": search.phase_episodes,
        "most_frames": given.budget_frames,
    },
    full=lambda search, budget, frames: budget if search.phase_episodes else frames,
)
SUCCESSIVE_HALVING = _entry(
    SuccessiveHalving,
    lambda search: search.phases,
    lambda search, given: {
        "phases": search.phases,
        "eviction_rate": search.eviction_rate,
        "slots": given.slots if search.allocation == "static" else None,
    },
)
HYPERBAND = _entry(
    Hyperband,
    lambda search: search.resource,
    lambda search, _: {"eta": search.eta, "resource": search.resource, "restart": search.restart},
    # The sum over rungs that restart, each eta times as long as the one before.
    full=lambda search, _, frames: frames * search.eta // (search.eta - 1) if search.restart else frames,
)
ASHA = _entry(
    Asha,
    lambda search: search.resource,
    lambda search, given: {"eta": search.eta, "resource": search.resource, "slots": given.slots},
    note=_asha_note,
)
RANDOM = _entry(RandomSearch, lambda search: search.phases, lambda *_: {}, once=True)
