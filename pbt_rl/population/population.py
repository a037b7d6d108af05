"""Population of a run: members, updated by the reports of the learners. Pure bookkeeping.

After a change of a member, short episodes end first. A mean over the finished episodes would be biased towards short
episodes. Therefore, finished episodes first wait in a queue. Whenever every environment has a queued episode, one
episode of each environment is counted. After a number of episodes of each environment (at most `EqualShares.rounds`),
or after a timeout, episodes are counted as soon as they end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Any

from pbt_rl.actors.messages import Episode, Game, LearnerReport, MemberStats
from pbt_rl.controllers.changes import Change
from pbt_rl.controllers.decisions import PopulationReport, StateKey
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.member_record import MemberRecord, population_clock
from pbt_rl.controllers.objectives import Judged, ObjectiveWindow, mean
from pbt_rl.controllers.state import TRANSIENT, restore_state, save_state
from pbt_rl.display.view import EXTRA, MemberView, TaskView
from pbt_rl.population.matchups.ratings import Ratings


@dataclass(eq=False)
class EqualShares:
    """Queue of a member's finished episodes that are not counted yet.

    While episodes are queued, all environments have equal shares in the mean.

    environments: number of the member's environments. rounds: number of episodes of each environment to queue after a
    change. Later episodes are counted as soon as they end.
    timeout_frames: timeout in frames of the member since the change. After the timeout, all finished episodes are
    counted, even if an environment is still in its first episode.
    """

    environments: int
    rounds: int
    timeout_frames: int
    _begun_frames: int = field(default=0, init=False)
    _counted: int = field(default=0, init=False)
    """Number of queued episodes of each environment that were counted since the last `restart`."""
    _needed: int = field(init=False)
    """Number of episodes of each environment to queue in this generation or evaluation, at most `rounds`."""
    _held: dict[int, list[Judged]] = field(default_factory=dict, init=False)
    """Environment -> finished episodes that are not counted yet, oldest first. Lists are not empty."""
    _over: bool = field(default=False, init=False)
    """True if episodes are counted as soon as they end."""

    def __post_init__(self) -> None:
        assert self.environments > 0
        assert self.rounds > 0
        self._needed = self.rounds

    def restored(self) -> None:
        """Adapt the restored state to fewer environments or a smaller window."""
        self._held = {e: held for e, held in self._held.items() if held and 0 <= e < self.environments}
        self._needed = min(self._needed, self.rounds)
        self._over = self._over or self._counted >= self._needed

    def restart(self, frames: int, episodes: int | None = None) -> None:
        """Clear the queue at the start of a generation or an evaluation.

        frames: present frames of the member. episodes: number of episodes to queue, at most a full window. It is
        rounded up to an equal number for each environment. None: a full window.
        """
        self._begun_frames, self._counted, self._over = frames, 0, False
        self._needed = (
            self.rounds if episodes is None else min(self.rounds, -(-episodes // self.environments))
        )
        self._held.clear()

    def end_episode(self, environment: int, episode: Judged) -> list[Judged]:
        """Add an episode of the present generation, and return the episodes to count now.

        The episode is dropped if its environment has enough queued episodes. The oldest queued episode of each
        environment is counted first.
        episode: (task, objective, return).
        """
        if self._over:
            return [episode]
        held = self._held.setdefault(environment, [])
        if len(held) < self._needed - self._counted:
            held.append(episode)
        counting: list[Judged] = []
        while not self._over and len(self._held) == self.environments:
            counting += self._next_round()
            self._counted += 1
            self._over = self._counted == self._needed
        return counting

    def note_frames(self, frames: int) -> list[Judged]:
        """Return the queued episodes if the timeout has passed, otherwise []. frames: present frames of the member."""
        if self._over or frames - self._begun_frames < self.timeout_frames:
            return []
        self._over = True
        counting: list[Judged] = []
        while self._held:
            counting += self._next_round()
        return counting

    def _next_round(self) -> list[Judged]:
        """Remove and return the oldest episode of each environment with queued episodes, in order of environment."""
        taken = [self._held[e].pop(0) for e in sorted(self._held)]
        self._held = {e: held for e, held in self._held.items() if held}
        return taken


RECENT_EPISODES = 100


@dataclass(eq=False)
class Member(MemberRecord):
    """Member with the statistics that its learner reports.

    The member is broken if its learner skipped all optimiser steps since the previous report, because gradients were
    not finite. Reports without optimiser steps and reports of earlier generations do not change `broken`.
    """

    shares: EqualShares = field(kw_only=True)
    """Queue of finished episodes of the present generation that are not counted yet."""
    tasks: tuple[str, ...] = ()
    by_games: bool = False
    """True if results of games against other members determine the objective (`Ratings`)."""
    min_rounds: int = 1
    """Minimum number of rounds since the last change for an update of `best`. A round is one episode of every task."""
    compares_newest: bool = False
    """True if only the episodes since the last comparison are compared.

    The view shows the mean of these episodes. If there are too few, the mean includes older episodes.
    """
    parked: bool = False
    """True if the member has no slot. Updated by `Slots`."""
    initial: Values = field(init=False)
    """Values at the start of the run."""
    episodes: int = field(default=0, init=False)
    """Number of finished episodes over all generations."""
    recent: deque[Episode] = field(init=False)
    stats: dict[str, float] = field(default_factory=dict, init=False)
    ended: dict[int, int] = field(default_factory=dict, init=False)
    """Environment -> length in steps of its first finished episode of the present generation."""
    steps: int = field(default=0, init=False, metadata=TRANSIENT)
    """Total number of environment steps from which the member has learned."""
    updates: int = field(default=0, init=False, metadata=TRANSIENT)
    """Total number of batches from which the member has learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.initial = dict(self.values)
        self.recent = deque(maxlen=RECENT_EPISODES)

    def apply(self, change: Change) -> None:
        """Apply a change. A new generation resets `broken`."""
        super().apply(change)
        if change.values is not None or change.evaluates:
            self.shares.restart(self.frames, change.evaluates * (len(self.tasks) or 1) or None)
        if change.values is not None:
            self.recent.clear()
            self.ended.clear()
            self.broken = False

    def note_stats(self, stats: MemberStats) -> None:
        """Apply the statistics of a learner's report."""
        self.note_counts(stats.frames, stats.steps, stats.updates)
        self._count(self.shares.note_frames(self.frames))
        self.stats |= stats.values
        if stats.broken is not None and stats.generation == self.generation:
            self.broken = stats.broken

    def note_counts(self, frames: int, steps: int, updates: int) -> None:
        """Update the member's counts of frames, steps and optimiser steps (`updates`).

        Counts below the present counts are ignored, because a former learner may report after the present learner.
        """
        self.frames, self.steps = max(self.frames, frames), max(self.steps, steps)
        self.updates = max(self.updates, updates)

    def note_episode(self, episode: Episode) -> None:
        """Record a finished episode. An episode that began in an earlier generation does not affect the objective.

        During an evaluation, an episode that began before the evaluation does not affect the objective either.
        """
        self.episodes += episode.count
        if episode.generation == self.generation:
            self.recent.append(episode)
            self.ended.setdefault(episode.environment, episode.length_steps)
            if not self.by_games and (episode.evaluation or not self.evaluates):
                judged = (episode.task, episode.objective, episode.raw_return)
                self._count(self.shares.end_episode(episode.environment, judged))

    def note_game(self, objective: float) -> None:
        """Add the score or the Elo rating after a game against other members to the window of the objective."""
        self._count([(0, objective, objective)])

    def _count(self, episodes: list[Judged]) -> None:
        if episodes:
            self.note_objectives(episodes, self.min_rounds)

    @property
    def complete(self) -> bool:
        """True if each environment has finished an episode that began in this generation.

        Before that, means over episodes are biased towards short episodes, which are often failures. Always True if
        games determine the objective (`by_games`).
        """
        return self.by_games or len(self.ended) >= self.shares.environments

    def view(self, of_games: Mapping[str, float] = MappingProxyType({})) -> MemberView:
        """Return the member's view for displays. of_games: `elo` and `win_rate`, if members play games."""
        stats = {**self.stats, **of_games}
        if self.recent:
            for name in ("raw_return", "shaped_return", "length_steps"):
                stats[name] = mean([getattr(e, name) for e in self.recent])
        for name in {name for episode in self.recent for name in episode.extra}:
            given = [episode.extra[name] for episode in self.recent if name in episode.extra]
            stats[f"{EXTRA}{name}"] = mean(given)
        recent = max(self.objectives.rounds - self.judged, self.shares.environments, self.min_rounds)
        rounds = self.objectives.objectives(recent if self.compares_newest else None)
        objective = mean(rounds) if rounds else None
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
            complete=self.complete,
            ended=len(self.ended),
            environments=self.shares.environments,
            early=mean([e.objective for e in self.recent]) if self.recent and not self.by_games else None,
            tasks={name: None if known is None else TaskView(*known) for name, known in seen.items()},
        )


@dataclass(eq=False)
class Population:
    """All members, updated by the reports of the learners.

    values: start values of the members. frame_skip: frames per environment step.
    window: maximum number of episodes in an objective. With tasks (`EnvSpec.tasks`): maximum number of rounds, each
    with one episode of every task.
    task_cap: upper limit of a task's mean objective.
    min_rounds: see `Member`. With tasks, `report` cuts all windows to the smallest number of rounds of any member.
    Members with fewer than `min_rounds` rounds are ignored in this minimum.
    compares_newest: see `Member`.
    ratings: ratings of all members. None: members do not play games together.
    environments: member -> number of its environments. None: one environment per member.
    timeout_frames: timeout in frames since a member's last change. After the timeout, finished episodes are counted
    without waiting for unfinished episodes.
    """

    values: InitVar[list[Values]]
    window: InitVar[int]
    frame_skip: int
    ratings: Ratings | None = field(default=None, kw_only=True)
    tasks: tuple[str, ...] = field(default=(), kw_only=True)
    task_cap: float | None = field(default=None, kw_only=True)
    min_rounds: int = field(default=1, kw_only=True)
    compares_newest: bool = field(default=False, kw_only=True)
    environments: Mapping[int, int] | None = field(default=None, kw_only=True)
    timeout_frames: int = field(default=10**18, kw_only=True)
    members: tuple[Member, ...] = field(init=False)
    lag_max: int = field(default=0, init=False)
    """Largest policy lag that a learner has reported, in optimiser steps."""
    discarded: int = field(default=0, init=False)
    """Number of discarded rollouts."""
    accelerated: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Learner -> its last reported use of CUDA graphs (`LearnerReport.accelerated`)."""
    _counted: dict[str, int] = field(default_factory=dict, init=False, metadata=TRANSIENT)
    """Learner -> its reported number of discarded rollouts. A new learner starts at 0."""
    _lag_sum: float = field(default=0.0, init=False)
    _lag_count: int = field(default=0, init=False)

    def __post_init__(self, values: list[Values], window: int) -> None:
        judge = self.ratings if self.ratings is not None and self.ratings.judges else None
        if judge is not None:
            self.tasks, self.task_cap = (), None
        rounds = window if judge is None else judge.window or window
        self._episodes = rounds * (len(self.tasks) or 1)  # not saved, because the options determine it
        self.members = tuple(
            Member(
                i,
                v,
                ObjectiveWindow(len(self.tasks) or 1, rounds, self.task_cap),
                shares=self.shares(1 if self.environments is None else self.environments[i]),
                tasks=self.tasks,
                by_games=judge is not None,
                min_rounds=self.min_rounds,
                compares_newest=self.compares_newest,
            )
            for i, v in enumerate(values)
        )

    def shares(self, environments: int) -> EqualShares:
        """Return an empty queue of episodes for a member with this number of environments."""
        return EqualShares(environments, -(-self._episodes // environments), self.timeout_frames)

    def play_elsewhere(self, number: int, environments: int) -> None:
        """Move a member to other environments. Finished episodes that are not counted yet are dropped.

        number: id of the member. environments: the member's new number of environments.
        """
        member = self.members[number]
        member.ended.clear()
        begun = save_state(member.shares) | {"_held": {}}
        member.shares = self.shares(environments)
        restore_state(member.shares, begun)

    def apply(self, changes: Sequence[Change], remembered: frozenset[StateKey]) -> None:
        """Apply the changes of one comparison to members and ratings.

        remembered: keys of the states that the controller remembers after the comparison.
        """
        if self.ratings is not None:
            self.ratings.follow(changes, remembered)
        for change in changes:
            self.members[change.member].apply(change)

    def set_timeout(self, frames: int) -> None:
        """Set `timeout_frames` of all members."""
        self.timeout_frames = frames
        for member in self.members:
            member.shares.timeout_frames = frames

    def learner_began(self, learner: str) -> None:
        """Reset the reported number of discarded rollouts for a new learner. learner: name of the learner."""
        self._counted.pop(learner, None)

    def take(self, learner: str, report: LearnerReport) -> None:
        """Apply a report of a learner. learner: name of the learner."""
        for stats in report.members:
            self.members[stats.member].note_stats(stats)
            if "lag" in stats.values:
                self._lag_sum += stats.values["lag"]
                self._lag_count += 1
        for episode in report.episodes:
            self.members[episode.member].note_episode(episode)
        for game in report.games:
            self._rate_game(game)
        self.lag_max = max(self.lag_max, report.lag_max)
        self.discarded += report.discarded_rollouts - self._counted.get(learner, 0)
        self._counted[learner] = report.discarded_rollouts
        if report.accelerated:
            self.accelerated[learner] = report.accelerated

    def _rate_game(self, game: Game) -> None:
        """Rate a game and note the new objectives, unless a member has changed since the start of the game."""
        present = all(
            self.members[m].generation == g for m, g in zip(game.members, game.generations, strict=True)
        )
        if self.ratings is None or not present:
            return
        for member, objective in self.ratings.take(game.members, game.objectives):
            self.members[member].note_game(objective)

    @property
    def generations(self) -> dict[int, int]:
        """Present generation of each member."""
        return {m.id: m.generation for m in self.members}

    @property
    def frames(self) -> int:
        """Emulator frames of the whole population."""
        return sum(m.frames for m in self.members)

    @property
    def steps(self) -> int:
        """Environment steps of the whole population."""
        return self.frames // self.frame_skip

    @property
    def least_frames(self) -> int:
        """Population clock (see `population_clock`)."""
        return population_clock(self.members)

    @property
    def all_stopped(self) -> bool:
        """True if every member has stopped."""
        return all(m.stopped for m in self.members)

    def has_reached(self, target: float | None) -> bool:
        """Check whether the objective of a member with a full window reaches the target. target: None for no target."""
        if target is None:
            return False
        known = [m.objective for m in self.members if m.objectives.full]
        return any(objective is not None and objective >= target for objective in known)

    @property
    def lag_mean(self) -> float:
        """Mean policy lag over the reports of all members, in optimiser steps. 0 before the first update."""
        return self._lag_sum / self._lag_count if self._lag_count else 0.0

    def report(self, seconds: float | None = None) -> PopulationReport:
        """Return the report for the controller, without stopped members.

        seconds: training time, or None if no rule needs it.
        With tasks, the windows are cut to an equal number of rounds (one episode of every task). Otherwise, the means
        of the shortest windows would be noisier than other means, and would therefore exceed `task_cap` more often.
        Members with fewer than `min_rounds` rounds keep their windows.
        """
        members = [m for m in self.members if not m.stopped]
        rounds = None
        if self.tasks:
            known = [m.objectives.rounds for m in members]
            rounds = min((n for n in known if n >= self.min_rounds), default=None)
        return PopulationReport(self.least_frames, tuple(m.report(rounds) for m in members), seconds)

    def views(self) -> list[MemberView]:
        """Return the views for displays, in order of id."""
        return [m.view({} if self.ratings is None else self.ratings.stats(m.id)) for m in self.members]
