"""The members as the supervisor knows them: values, objectives, counts. Pure bookkeeping."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from pbt_rl.pbt.decisions import MemberReport, PopulationReport
from pbt_rl.pbt.hypers import Values
from pbt_rl.pbt.selection import mean_objective
from pbt_rl.reports import EXTRA, Episode, LearnerReport, MemberStats, MemberView

RECENT_EPISODES = 100


@dataclass
class Member:
    """One place of the population."""

    id: int
    values: Values
    initial: Values
    window: int
    generation: int = 0
    steps: int = 0
    frames: int = 0
    episodes: int = 0
    """Over all generations."""
    episodes_now: int = 0
    """That began in the present generation."""
    best: float | None = None
    """Highest mean of the window since the last comparison or change, if that saw an episode."""
    objectives: deque[float] = field(init=False)
    recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    stats: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    parked: bool = False
    """It holds no place."""
    until_frames: int | None = None
    """With so many frames it waits for a decision."""
    broken: bool = False
    """Its last optimiser steps in this generation were all left out: no gradient was finite."""

    def __post_init__(self) -> None:
        self.objectives = deque(maxlen=self.window)

    def change(self, values: Values) -> None:
        """Begin a new generation: nothing measured before counts for it."""
        self.values = dict(values)
        self.generation += 1
        self.episodes_now = 0
        self.best = None
        self.objectives.clear()
        self.recent.clear()
        self.broken = False

    def note(self, stats: MemberStats) -> None:
        """Take in what its learner reports. Steps it sampled are those it is credited with."""
        self.frames = stats.frames
        self.stats |= stats.values
        if stats.broken is not None and stats.generation == self.generation:
            self.broken = stats.broken

    def finish(self, episode: Episode) -> None:
        """Count an episode; it speaks for the member only if it began in the present generation."""
        self.episodes += 1
        if episode.generation == self.generation:
            self.episodes_now += 1
            self.objectives.append(episode.objective)
            self.recent.append(episode)
            mean = mean_objective(self.objectives)
            if mean > (-math.inf if self.best is None else self.best):
                self.best = mean

    def report(self) -> MemberReport:
        """What a controller may know."""
        return MemberReport(
            self.id,
            self.frames,
            tuple(self.objectives),
            self.episodes_now,
            self.generation,
            dict(self.values),
            self.best,
            broken=self.broken,
        )

    def view(self) -> MemberView:
        """What the displays show."""
        stats = dict(self.stats)
        if self.recent:
            for name in ("raw_return", "shaped_return", "length_steps"):
                stats[name] = math.fsum(getattr(e, name) for e in self.recent) / len(self.recent)
        for name in {name for episode in self.recent for name in episode.extra}:
            given = [episode.extra[name] for episode in self.recent if name in episode.extra]
            stats[f"{EXTRA}{name}"] = math.fsum(given) / len(given)
        objective = math.fsum(self.objectives) / len(self.objectives) if self.objectives else None
        return MemberView(
            member=self.id,
            objective=objective,
            episodes=self.episodes,
            generation=self.generation,
            frames=self.frames,
            values=dict(self.values),
            initial=dict(self.initial),
            stats=stats,
            stopped=self.stopped,
            parked=self.parked,
        )


class Population:
    """All members, fed by the learners' reports."""

    def __init__(self, values: list[Values], window: int, frame_skip: int) -> None:
        self.members = [Member(i, dict(v), dict(v), window) for i, v in enumerate(values)]
        self._frame_skip = frame_skip
        self.lag_max = 0
        self._discarded: dict[str, int] = {}
        self._lag_sum, self._lag_count = 0.0, 0

    def take(self, pack: str, report: LearnerReport) -> None:
        """Take in one learner's report. pack: any name that is the learner's own."""
        for stats in report.members:
            self.members[stats.member].note(stats)
            if "lag" in stats.values:
                self._lag_sum += stats.values["lag"]
                self._lag_count += 1
        for episode in report.episodes:
            self.members[episode.member].finish(episode)
        self.lag_max = max(self.lag_max, report.lag_max)
        self._discarded[pack] = report.discarded_rollouts

    @property
    def frames(self) -> int:
        """Emulator frames of the whole population."""
        return sum(m.frames for m in self.members)

    @property
    def steps(self) -> int:
        """Decisions of the whole population."""
        return self.frames // self._frame_skip

    @property
    def least_frames(self) -> int:
        """The population's clock: the least frames of any member that trains."""
        return min((m.frames for m in self.members if not m.stopped), default=0)

    @property
    def all_stopped(self) -> bool:
        """Nobody is left to train."""
        return all(m.stopped for m in self.members)

    def missing_frames(self, budget_frames: int) -> int:
        """Frames until every member that was not stopped has its budget."""
        return sum(max(0, budget_frames - m.frames) for m in self.members if not m.stopped)

    @property
    def lag_mean(self) -> float:
        """Mean policy lag of all reports, in updates."""
        return self._lag_sum / self._lag_count if self._lag_count else 0.0

    @property
    def discarded(self) -> int:
        """Rollouts thrown away, in total."""
        return sum(self._discarded.values())

    def report(self) -> PopulationReport:
        """What a controller may know."""
        return PopulationReport(self.least_frames, tuple(m.report() for m in self.members if not m.stopped))

    def views(self) -> list[MemberView]:
        """What the displays show, in order of id."""
        return [m.view() for m in self.members]
