"""Registry entries of the searches: their constructors and time limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pbt_rl.controllers.decisions import Controller
from pbt_rl.controllers.entry import ControllerContext, ControllerEntry, OptionGroups
from pbt_rl.controllers.options import SearchConfig
from pbt_rl.controllers.search.asha import Asha
from pbt_rl.controllers.search.brackets import Hyperband
from pbt_rl.controllers.search.hypertrick import HyperTrick, SuccessiveHalving
from pbt_rl.controllers.search.search import RandomSearch, Search, draw_grid, draw_random
from pbt_rl.errors import require


@dataclass(frozen=True)
class _Kind:
    """Description of a kind of search, from which `entry` is built.

    search: class of the controller.
    phases: function (options) -> number of phases (Hyperband, ASHA: units) of a full training.
    own: function (options, context) -> additional keyword arguments of `search`.
    once: True if members are only judged at the end of their training.
    most: function (options, budget in frames, frames of a full training) -> maximum frames of a member.
    note: function (options, number of members, budget in frames) -> warning about unsuitable settings, or "".
    """

    search: type[Search]
    phases: Callable[[SearchConfig], int]
    own: Callable[[SearchConfig, ControllerContext], dict[str, Any]]
    once: bool = False
    most: Callable[[SearchConfig, int, int], int] = lambda _search, _budget, frames: frames
    note: Callable[[OptionGroups, int, int], str] = lambda *_: ""

    @property
    def entry(self) -> ControllerEntry:
        """Registry entry of the search."""
        return ControllerEntry(
            self.build,
            ("search", "pbt.min_episodes"),
            "searches that draw configurations and stop bad configurations early (--search).",
            searches=True,
            note=self.note,
            timeout_frames=self.timeout_frames,
            full_frames=self.full_frames,
            schedule_frames=self.schedule_frames,
        )

    def build(self, given: ControllerContext) -> Controller:
        """Build the controller. Raises ConfigError if the budget has less than one frame per phase."""
        search, budget = given.options.group(SearchConfig), given.budget_frames
        frames = self._phase(search, budget)
        remedy = f"give at least {self.phases(search)}, one frame per phase, or set --search.phase-frames"
        require(frames > 0, "train-for-frames", budget, remedy)
        return self.search(
            given.table,
            given.seed,
            phase_frames=frames,
            min_episodes=given.pbt.min_episodes,
            sampling=draw_grid if search.sampling == "grid" else draw_random,
            **self.own(search, given),
        )

    def timeout_frames(self, options: OptionGroups, budget: int) -> int:
        """Return the timeout of unfinished episodes in frames. budget: frames per member.

        With `once`, the timeout is the length of the whole training. Without `once`, it is the length of two phases
        (Hyperband, ASHA: units), because the search may extend a phase by one phase (unit).
        """
        return max(1, self._phase(options.group(SearchConfig), budget)) * (1 if self.once else 2)

    def full_frames(self, options: OptionGroups, budget: int) -> int:
        """Return the maximum number of frames of a member, without extensions of phases. budget: frames per member."""
        search = options.group(SearchConfig)
        return self.most(search, budget, self._whole(search, budget))

    def schedule_frames(self, options: OptionGroups, budget: int) -> int:
        """Return the maximum frames from one initialisation of the weights to the next. budget: frames per member."""
        return min(self.full_frames(options, budget), self._whole(options.group(SearchConfig), budget))

    def _whole(self, search: SearchConfig, budget: int) -> int:
        return search.phase_frames * self.phases(search) or budget

    def _phase(self, search: SearchConfig, budget: int) -> int:
        return (
            self._whole(search, budget) if self.once else search.phase_frames or budget // self.phases(search)
        )


def _asha_note(options: OptionGroups, members: int, _budget_frames: int) -> str:
    """Return a warning about a population that is too small for the highest rung, or ""."""
    search = options.group(SearchConfig)
    rungs = Asha({}, 0, phase_frames=1, eta=search.eta, resource=search.resource).rungs
    least = search.eta ** (len(rungs) - 1)
    if members >= least:
        return ""
    reached = next(i for i in range(len(rungs)) if members < search.eta ** (i + 1))
    return (
        f"note: asha promotes one of {search.eta} members from each rung. With {members} members, none trains beyond "
        f"{rungs[reached]} of {search.resource} units: give --num-policies {least} or more, or a smaller "
        f"--search.resource, such as {search.eta**reached}"
    )


HYPERTRICK = _Kind(
    HyperTrick,
    lambda search: search.phases,
    lambda search, given: {
        "phases": search.phases,
        "eviction_rate": search.eviction_rate,
        "phase_episodes": search.phase_episodes,
        "most_frames": given.budget_frames,
    },
    most=lambda search, budget, frames: budget if search.phase_episodes else frames,
).entry
SUCCESSIVE_HALVING = _Kind(
    SuccessiveHalving,
    lambda search: search.phases,
    lambda search, given: {
        "phases": search.phases,
        "eviction_rate": search.eviction_rate,
        "slots": given.slots if search.allocation == "static" else None,
    },
).entry
HYPERBAND = _Kind(
    Hyperband,
    lambda search: search.resource,
    lambda search, _: {"eta": search.eta, "resource": search.resource, "restart": search.restart},
    # Upper limit of the sum over rungs that restart. Each rung is eta times as long as the previous rung.
    most=lambda search, _, frames: frames * search.eta // (search.eta - 1) if search.restart else frames,
).entry
ASHA = _Kind(
    Asha,
    lambda search: search.resource,
    lambda search, given: {"eta": search.eta, "resource": search.resource, "slots": given.slots},
    note=_asha_note,
).entry
RANDOM = _Kind(RandomSearch, lambda search: search.phases, lambda *_: {}, once=True).entry
