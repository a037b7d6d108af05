"""Base of the searches over configurations, and random search.

                    +--------------------------- continues -------------------------+
                    v                                                               |
   drawn -> trains until `until_frames` -> has enough episodes? --- yes --> judged -+--> stopped
                    ^                               |                         (evicted or completed)
                    +----- is extended <---- no ----+

When a member stops, its slot goes to another member (`population`): to the least trained of the members that may train
and have no slot.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random

from pbt_rl.controllers.decisions import Continue, Decision, MemberReport, PopulationReport, StateKey, Stop
from pbt_rl.controllers.exploit import score
from pbt_rl.controllers.hypers import HyperSpec, Values, sample_prior
from pbt_rl.controllers.state import STATE
from pbt_rl.errors import ConfigError

Sampling = Callable[[Mapping[str, HyperSpec], int, Random], list[Values]]
"""Function (specs of the searched values, number of configurations, random generator) -> configurations."""


def draw_random(specs: Mapping[str, HyperSpec], number: int, rng: Random) -> list[Values]:
    """Return `number` configurations, with each value drawn independently from its prior."""
    return [{name: sample_prior(spec, rng) for name, spec in specs.items()} for _ in range(number)]


def draw_grid(specs: Mapping[str, HyperSpec], number: int, rng: Random) -> list[Values]:
    """Return `number` points of a grid, in random order.

    Each spec starts with one level (grid value). The specs gain one level each, round-robin, until the grid has enough
    points. A spec with one level keeps its default. If no spec can gain a level (few choices), points repeat.
    """
    levels = grid_levels(specs, number)
    points = [dict(zip(specs, point, strict=True)) for point in product(*levels)]
    rng.shuffle(points)
    return [dict(points[i % len(points)]) for i in range(number)]


def grid_levels(specs: Mapping[str, HyperSpec], number: int) -> list[list[float]]:
    """Return the levels (grid values) of each spec, ascending. The grid has at least `number` points if possible."""
    most = [_distinct(spec) for spec in specs.values()]
    sizes = [1] * len(most)
    while math.prod(sizes) < number and sizes != most:
        for i, limit in enumerate(most):
            if sizes[i] < limit and math.prod(sizes) < number:
                sizes[i] += 1
    return [
        [spec.clamp(spec.default)]
        if size == 1
        else [prior_quantile(spec, (i + 0.5) / size) for i in range(size)]
        for spec, size in zip(specs.values(), sizes, strict=True)
    ]


def prior_quantile(spec: HyperSpec, share: float) -> float:
    """Return the quantile `share` (0 to 1) of a value's prior, clipped to the bounds.

    Raises ConfigError if the logarithm of the prior's scale is undefined within the prior's range.
    """
    prior = spec.start
    if prior.choices:
        return spec.clamp(prior.choices[min(int(share * len(prior.choices)), len(prior.choices) - 1)])
    if prior.scale in ("log", "one_minus"):
        mirrored = prior.scale == "one_minus"
        sign = -1 if prior.high < 0 else 1
        ends = (1 - prior.low, 1 - prior.high) if mirrored else (sign * prior.low, sign * prior.high)
        if min(ends) <= 0:
            raise ConfigError(
                f"{spec.name}={prior.low:g}:{prior.high:g} has no grid on the scale {prior.scale}: "
                f"give {'an upper end below 1' if mirrored else 'ends on one side of 0'}, or the scale linear"
            )
        at = math.exp((1 - share) * math.log(ends[0]) + share * math.log(ends[1]))
        return spec.clamp(1 - at if mirrored else sign * at)
    if prior.scale == "linear":
        return spec.clamp(prior.low + share * (prior.high - prior.low))
    low = math.ceil(prior.low)
    return spec.clamp(low + math.floor(share * (math.floor(prior.high) - low + 1)))


def _distinct(spec: HyperSpec) -> float:
    """Return the number of different values of a tuned value in a grid search. inf for a continuous value."""
    prior = spec.start
    if prior.choices:
        return len(prior.choices)
    if prior.low == prior.high:
        return 1
    if prior.scale in ("log", "one_minus", "linear") and spec.scale != "integer":
        return math.inf
    return math.floor(prior.high) - math.ceil(prior.low) + 1


EXTENSIONS = 10
"""A phase with too few episodes is extended by `phase_frames` / EXTENSIONS at a time."""


@dataclass
class Progress:
    """Training progress of one member. All times are frame counts of this member.

    phase: present phase, from 0. start_frames: time at which the present weights were initialised.
    end_frames: end of the phase without extensions. until_frames: time at which the member pauses. `until_frames` is
    less than `end_frames` before the member may start the phase, and larger after an extension.
    """

    phase: int = 0
    start_frames: int = 0
    end_frames: int = 0
    until_frames: int = 0
    stopped: bool = False

    @property
    def released(self) -> bool:
        """True if the member may train to the end of the phase."""
        return self.until_frames >= self.end_frames


@dataclass(frozen=True)
class Ended:
    """Report and finite score of a member at the end of its phase."""

    report: MemberReport
    score: float


@dataclass(eq=False)
class Search(ABC):
    """Controller that draws configurations, trains them phase by phase, and stops them.

    table: specs of all values of a member. Tuned values are sampled for every member, including member 0. Other values
    keep their defaults.
    phase_frames: frames of a member per phase (Hyperband, ASHA: per unit of the resource).
    min_episodes: minimum number of episodes of a member at the end of a phase. With fewer episodes, the phase is
    extended by at most `phase_frames`. If the member still has no episode, the member is stopped.
    sampling: function that draws the configurations.

    A member that is broken or has no finite objective is stopped and not ranked, because it must not affect the other
    members. At the first report, every member gets a decision: to train its first phase, or to wait for a slot.
    """

    table: Mapping[str, HyperSpec]
    seed: int
    phase_frames: int = field(kw_only=True, metadata=STATE)
    min_episodes: int = field(default=1, kw_only=True)
    sampling: Sampling = field(default=draw_random, kw_only=True)
    _rng: Random = field(init=False)
    _begun: bool = field(default=False, init=False)
    _progress: list[Progress] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        assert self.phase_frames > 0
        self._rng = Random(self.seed)

    def initial(self, num_members: int) -> list[Values]:
        """Return sampled values for each member."""
        self._progress = [Progress() for _ in range(num_members)]
        self._plan(num_members)
        searched = {name: spec for name, spec in self.table.items() if spec.tuned}
        rest = {name: spec.default for name, spec in self.table.items()}
        return [rest | values for values in self.sampling(searched, num_members, self._rng)]

    def observe(self, report: PopulationReport) -> list[Decision]:
        """Return decisions on members that have ended a phase, are broken, or may start."""
        if not self._begun:
            self._begun = True
            return self._first_decisions(report)
        decisions: list[Decision] = []
        ended: dict[int, Ended] = {}
        for m in report.members:
            progress = self._progress[m.member]
            if progress.stopped:
                continue
            if m.broken:
                decisions.append(self._give_up(m.member, "broken"))
            elif self._phase_is_over(m, progress):
                if self._needs_more(m, progress):
                    decisions.append(self._extend(m, progress))
                else:
                    own = score(m)
                    if math.isnan(own):
                        decisions.append(self._give_up(m.member, "no finite objective"))
                    else:
                        ended[m.member] = Ended(m, own)
        decisions += self._judge(ended, report)
        return sorted(decisions, key=lambda d: d.member)

    @abstractmethod
    def _plan(self, num_members: int) -> None:
        """Initialise the state for this number of members."""

    @abstractmethod
    def _first_decisions(self, report: PopulationReport) -> list[Decision]:
        """Decide on each member at the first report."""

    @abstractmethod
    def _judge(self, ended: dict[int, Ended], report: PopulationReport) -> list[Decision]:
        """Return decisions on members that have ended their phase.

        A call that returns no decision must not change `self`.

        ended: member -> report and score at the end of its phase. A member without a decision is in `ended` again at
        the next call.
        report: report of all members, including members that `observe` has stopped at this report.
        """

    @staticmethod
    def _with_waiting(begun: Sequence[Decision], report: PopulationReport, reason: str) -> list[Decision]:
        """Return the decisions in `begun`, and a decision to wait for each member without a decision."""
        decisions: dict[int, Decision] = {m.member: Continue(m.member, reason, 0) for m in report.members}
        decisions |= {d.member: d for d in begun}
        return [decisions[m.member] for m in report.members]

    def _phase_is_over(self, m: MemberReport, progress: Progress) -> bool:
        return m.frames >= progress.until_frames and progress.released

    def _needs_more(self, m: MemberReport, progress: Progress) -> bool:
        return m.episodes < self.min_episodes and m.frames < progress.end_frames + self.phase_frames

    def _extend(self, m: MemberReport, progress: Progress) -> Decision:
        progress.until_frames = m.frames + max(1, self.phase_frames // EXTENSIONS)
        reason = f"phase {progress.phase} is extended: {m.episodes} of {self.min_episodes} episodes"
        return Continue(m.member, reason, progress.until_frames, progress.phase)

    def _give_up(
        self, member: int, reason: str, score: float | None = None, place: tuple[int, int] | None = None
    ) -> Decision:
        """Return the decision that evicts a member. place: (rank of the score, number of ranked scores)."""
        self._progress[member].stopped = True
        return Stop(member, f"evicted: {reason}", score=score, place=place)

    def _complete(self, member: int, score: float) -> Decision:
        """Return the decision that stops a member after its full training."""
        self._progress[member].stopped = True
        return Stop(member, f"completed: score {score:.4g}", completed=True, score=score)

    def remembers(self) -> frozenset[StateKey]:
        """Return the empty set, because this controller restores no earlier state."""
        return frozenset()


@dataclass(eq=False)
class RandomSearch(Search):
    """Random search, or grid search with `sampling=draw_grid`. Each member trains for one phase."""

    def _plan(self, num_members: int) -> None:
        pass

    def _first_decisions(self, report: PopulationReport) -> list[Decision]:
        for m in report.members:
            progress = self._progress[m.member]
            progress.end_frames = progress.until_frames = self.phase_frames
        return [Continue(m.member, "phase 0", self.phase_frames, phase=0) for m in report.members]

    def _judge(self, ended: dict[int, Ended], report: PopulationReport) -> list[Decision]:  # noqa: ARG002
        return [self._complete(member, at_end.score) for member, at_end in ended.items()]
