"""The members as the supervisor knows them: values, objectives, counts. Pure bookkeeping."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from pbt_rl.display.view import EXTRA, MemberView, TaskView
from pbt_rl.pbt.decisions import MemberReport, PopulationReport
from pbt_rl.pbt.exploit.base import mean_objective
from pbt_rl.pbt.hypers import Values
from pbt_rl.population.objectives import ObjectiveWindow
from pbt_rl.population.ratings import Ratings
from pbt_rl.wire.messages import Episode, Game, LearnerReport, MemberStats

RECENT_EPISODES = 100
Judge = Literal["return", "win-rate", "elo"]
"""What members are ranked by: see MatchupConfig."""


@dataclass
class Member:
    """One place of the population."""

    id: int
    values: Values
    initial: Values
    objectives: ObjectiveWindow
    tasks: tuple[str, ...] = ()
    generation: int = 0
    steps: int = 0
    frames: int = 0
    episodes: int = 0
    """Over all generations."""
    episodes_now: int = 0
    """That began in the present generation."""
    best: float | None = None
    """Highest mean of the window since the last comparison or change, if that saw an episode."""
    recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    stats: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    parked: bool = False
    """It holds no slot."""
    until_frames: int | None = None
    """With so many frames it waits for a decision."""
    broken: bool = False
    """Its last optimiser steps in this generation were all left out: no gradient was finite."""
    judged_by: Judge = "return"
    scores: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    """Of its last games against other members in the present generation."""

    def change(self, values: Values) -> None:
        """Begin a new generation: nothing measured before counts for it."""
        self.values = dict(values)
        self.generation += 1
        self.episodes_now = 0
        self.best = None
        self.objectives.clear()
        self.recent.clear()
        self.scores.clear()
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
            self.recent.append(episode)
            if self.judged_by == "return":
                self._judge(episode.objective, episode.raw_return, episode.task)

    def meet(self, score: float, elo: float) -> None:
        """Count a game against other members: its score, and the rating after it."""
        self.scores.append(score)
        if self.judged_by == "win-rate":
            self._judge(score, score)
        elif self.judged_by == "elo":
            self._judge(elo, elo)

    def _judge(self, objective: float, raw_return: float, task: int = 0) -> None:
        self.episodes_now += 1
        self.objectives.add(task, objective, raw_return)
        known = self.objectives.objectives()
        mean = mean_objective(known) if known else math.nan
        if mean > (-math.inf if self.best is None else self.best):
            self.best = mean

    def report(self, rounds: int | None = None) -> MemberReport:
        """What a controller may know. rounds: of how many the objectives are at most; None: all in the window."""
        return MemberReport(
            self.id,
            self.frames,
            self.objectives.objectives(rounds),
            self.objectives.rounds,
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
        if self.scores:
            stats["win_rate"] = math.fsum(self.scores) / len(self.scores)
        rounds = self.objectives.objectives()
        objective = math.fsum(rounds) / len(rounds) if rounds else None
        seen = {name: self.objectives.of_task(number) for number, name in enumerate(self.tasks)}
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
            tasks={name: None if known is None else TaskView(*known) for name, known in seen.items()},
        )


class Population:
    """All members, fed by the learners' reports.

    window: episodes that an objective is the mean of at most; with tasks (see EnvSpec) rounds of one episode of each.
    min_rounds: fewer make no objective that others are compared with.
    """

    def __init__(
        self,
        values: list[Values],
        window: int,
        frame_skip: int,
        *,
        judged_by: Judge = "return",
        ratings: Ratings | None = None,
        tasks: tuple[str, ...] = (),
        task_cap: float | None = None,
        min_rounds: int = 1,
    ) -> None:
        """judged_by: what a member's objective is. ratings: of all members, where they meet in games."""
        if judged_by != "return":
            tasks, task_cap = (), None
        rounds = 1 if judged_by == "elo" else window  # a rating is a mean already
        self.members = [
            Member(
                i,
                dict(v),
                dict(v),
                ObjectiveWindow(len(tasks) or 1, rounds, task_cap),
                tasks,
                judged_by=judged_by,
            )
            for i, v in enumerate(values)
        ]
        self.ratings = ratings
        self._tasks, self._min_rounds = tasks, min_rounds
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
        for game in report.games:
            self._take_game(game)
        self.lag_max = max(self.lag_max, report.lag_max)
        self._discarded[pack] = report.discarded_rollouts

    def _take_game(self, game: Game) -> None:
        """Rate a game, if all who played it are still what they were when it began."""
        present = all(
            self.members[m].generation == g for m, g in zip(game.members, game.generations, strict=True)
        )
        if self.ratings is None or not present:
            return
        for member, score in self.ratings.note(game.members, game.objectives):
            self.members[member].meet(score, self.ratings.elo[member])

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
        """What a controller may know.

        With tasks, all members are judged over equally many rounds: a mean over fewer would meet the cap more often.
        """
        members = [m for m in self.members if not m.stopped]
        rounds = None
        if self._tasks:
            known = [m.objectives.rounds for m in members]
            rounds = min((n for n in known if n >= self._min_rounds), default=None)
        return PopulationReport(self.least_frames, tuple(m.report(rounds) for m in members))

    def views(self) -> list[MemberView]:
        """What the displays show, in order of id."""
        if self.ratings is not None:
            for member, elo, games in zip(self.members, self.ratings.elo, self.ratings.games, strict=True):
                if games:
                    member.stats["elo"] = elo
        return [m.view() for m in self.members]
