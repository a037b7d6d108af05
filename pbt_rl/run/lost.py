"""Replaces processes that have died or hang, as long as that can help: learners, and actors.

    LearnerLost -> fence: it and its actors are killed   nothing that it has sent is read any more
                -> a checkpoint in progress is given up
                -> Dispatch.lost                         what was on its way is settled
                -> a new learner and new actors          load the origin of each member (`population.store.Origin`)

Its members go on as they were last saved, while other packs train on. Members without a slot, and remembered states,
lose nothing: they are in the store.

A learner that is lost with its machine begins in another place at once if there is one. Else its members go to the
packs that serve, and wait there for a slot; once there is a place again, the pack starts without members, and takes
such as wait. If the loss was announced (MachineLeaving), members are copied first.

The clock never steps back: what a member had trained since it was saved is lost, and journaled.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from pbt_rl.actors.messages import LearnerReport
from pbt_rl.config import Config
from pbt_rl.errors import ConfigError, EnvSetupError, RunFailed
from pbt_rl.population.population import Population
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.fleet import ActorFailed, Fleet, LearnerLost
from pbt_rl.run.memory import Start
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.throughput import Throughput

MOST_REPLACED = 2
WITHIN_SECONDS = 3600.0


@dataclass(eq=False)
class LostLearners:
    """Counts the learners that were replaced in a run, and ends it with the cause when that cannot help."""

    save_every_seconds: float
    population: Population
    comparisons: Comparisons
    checkpoints: Checkpointing
    recorder: Recorder
    throughput: Throughput
    start: Start = field(init=False)
    """Where the processes of the run begin."""
    count: int = field(default=0, init=False)
    _replaced: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_REPLACED), init=False)
    """time.monotonic() of the last times."""
    _updates: dict[int, dict[int, int]] = field(default_factory=dict, init=False)
    """Pack -> updates of its members at their first report by its learner."""
    _trained: set[int] = field(default_factory=set, init=False)
    """Packs whose learner has learned."""
    _leaving: dict[int, tuple[LearnerLost, int]] = field(default_factory=dict, init=False)
    """Packs whose machine is about to be taken away -> (why, rounds of copies that were begun before)."""

    def note_report(self, pack: int, report: LearnerReport) -> None:
        """Note that a learner trains: one that is lost before is not replaced."""
        first = self._updates.setdefault(pack, {})
        if any(one.updates > first.setdefault(one.member, one.updates) for one in report.members):
            self._trained.add(pack)

    def replace(self, fleet: Fleet, lost: LearnerLost) -> None:
        """Replace a learner. Raises RunFailed with the cause if that cannot help.

        Raises ConfigError if it could not begin, for a reason that only the user can mend.
        """
        self._leaving.pop(lost.pack, None)
        fleet.fence(lost.pack)
        self.comparisons.slots.serving.discard(lost.pack)
        if lost.user_error and lost.pack not in self._trained:
            raise ConfigError(lost.text)
        self.checkpoints.abandon("a learner was lost")
        refused = self._refused(lost)
        if refused:
            raise RunFailed(f"{lost.text}\nThe run ends: {refused}. {self.saved_text()}")
        try:
            losses = self.comparisons.dispatch.lost(lost.pack)
            fleet.replace_learner(lost.pack, self._start_again(lost.pack))
        except (ConfigError, OSError) as error:
            raise RunFailed(
                f"{lost.text}\nThe run ends: its members could not be restored: {error}. {self.saved_text()}"
            ) from error
        self.count += 1
        if not lost.machine:
            self._replaced.append(time.monotonic())
        self._trained.discard(lost.pack)
        self._updates.pop(lost.pack, None)
        self.recorder.pack_lost(lost, losses)
        self.population.learner_began(str(lost.pack))
        self.comparisons.note_lost(lost.pack)
        self._scatter(fleet)

    def found(self, fleet: Fleet) -> None:
        """Go on after a learner has started again, which may have room for members that wait."""
        self._scatter(fleet)
        self.comparisons.change_slots()

    def _scatter(self, fleet: Fleet) -> None:
        """Let packs that serve take the members of those that wait for a machine."""
        slots = self.comparisons.slots
        for pack in range(len(slots.packs)):
            if slots.of(pack) and fleet.waits(pack) and self.comparisons.scatter(pack):
                fleet.replace_learner(pack, self._start_again(pack))

    def leave(self, lost: LearnerLost) -> None:
        """Prepare for the loss of a machine that was announced: copies are made, and then its members go elsewhere."""
        self._leaving[lost.pack] = (lost, self.checkpoints.begun)
        self.checkpoints.when.copies_asked = True

    def step(self, fleet: Fleet) -> None:
        """Leave machines whose loss was announced, once there are copies of what they hold."""
        for lost, begun in [*self._leaving.values()]:
            if self.checkpoints.whole > begun:
                self.replace(fleet, lost)

    def _start_again(self, pack: int) -> Start:
        """Return where the learner of a pack begins: with its members as they should be now."""
        packs = range(len(self.comparisons.slots.packs))
        return Start(
            [self.comparisons.dispatch.first_loads(pack) if number == pack else () for number in packs],
            self.start.unheld_values,
            resumes=self.start.resumes,
            seconds=self.throughput.training_seconds,
        )

    def saved_text(self) -> str:
        """Say what a run that ends now is continued from."""
        newest = self.checkpoints.newest
        if newest is not None:
            age = time.time() - newest.manifest.time
            return f"It can be resumed from checkpoint {newest.path.name}, saved {age:.0f} s ago"
        return "It can be resumed from where it began" if self.start.resumes else "It was never saved"

    def _refused(self, lost: LearnerLost) -> str:
        """Return why a learner is not replaced; empty if it is."""
        if lost.machine:
            return ""
        if lost.pack not in self._trained:
            return "this learner had not trained yet"
        now = time.monotonic()
        if sum(now - then < WITHIN_SECONDS for then in self._replaced) >= MOST_REPLACED:
            return f"{MOST_REPLACED} learners were replaced within an hour before"
        saved = self.checkpoints.newest is not None or self.start.resumes
        if not saved and self.throughput.training_seconds >= self.save_every_seconds:
            return "its members were never saved, and would have to begin with their initial weights"
        return ""


WINDOW_MINUTES = 10
"""Restarts count for this long: an environment that fails now and then may do so for ever."""
WORKED_STEPS = 1000
"""After this many steps of its units an environment has shown that it works: what fails then is not its setup."""
FEW_STEPS = 100
"""An actor that took fewer steps of its units than this was restarted for nothing, however long that took."""
MAX_ERROR_CHARACTERS = 10_000
ADDRESS = re.compile("0x[0-9a-f]+")
"""Each process has its own."""


@dataclass(eq=False)
class ActorRestarts:
    """Counts the restarts of a run, and ends it with the cause when they are too many or come to nothing."""

    config: Config
    recorder: Recorder
    count: int = field(default=0, init=False)
    _recent: deque[float] = field(default_factory=deque, init=False)
    """Times of the restarts within the window."""
    _steps: dict[int, int] = field(default_factory=dict, init=False)
    """Actor -> steps of its units at its last restart."""
    _for_nothing: Counter[int] = field(default_factory=Counter, init=False)
    """Actor -> its newest restarts in a row after which it took few steps or none."""
    _seen: Counter[int] = field(default_factory=Counter, init=False)
    """Hash of an error -> how often it caused a restart."""

    def replace(self, fleet: Fleet, failed: ActorFailed) -> None:
        """Restart an actor. Raises EnvSetupError if it never became usable, RunFailed if it happens too often."""
        steps, text = fleet.actions_given(failed.actor), _bounded(failed.text)
        if failed.user_error and steps < WORKED_STEPS:
            raise EnvSetupError(text)
        if steps == 0 and not (failed.hung or failed.killed):
            raise EnvSetupError(
                f"{self.config.env} cannot be used: it raised when it was made or reset.\n{text}"
            )
        self.count += 1
        self.recorder.actor_restarted(replace(failed, text=text), self._shortened(text.strip()))
        self._check_rate(failed.actor, steps, text)
        try:
            fleet.restart_actor(failed.actor)
        except OSError as error:  # too many processes, too little memory
            raise RunFailed(
                f"actor {failed.actor} could not be started again: {error}; it had failed:\n{text}"
            ) from error

    def _check_rate(self, actor: int, steps: int, text: str) -> None:
        """Raise RunFailed if there are too many restarts. steps: that the actor's units took in the run."""
        limit, now = self.config.max_actor_restarts, time.monotonic()
        self._recent.append(now)
        while self._recent[0] < now - 60 * WINDOW_MINUTES:
            self._recent.popleft()
        taken, self._steps[actor] = steps - self._steps.get(actor, 0), steps
        self._for_nothing[actor] = self._for_nothing[actor] + 1 if taken < FEW_STEPS else 0
        too_many = f"times, more than --max-actor-restarts {limit}"
        if len(self._recent) > limit:
            raise RunFailed(
                f"actors were restarted {len(self._recent)} {too_many} within {WINDOW_MINUTES} minutes; the last one:\n"
                f"{text}"
            )
        if self._for_nothing[actor] > limit:
            raise RunFailed(
                f"actor {actor} was restarted {self._for_nothing[actor]} {too_many}, without reaching {FEW_STEPS} "
                f"steps in between; the last one:\n{text}"
            )

    def _shortened(self, error: str) -> str:
        """Return the whole error the first time, later the last line of one that has several."""
        key, lines = hash(ADDRESS.sub("", error)), error.splitlines()
        self._seen[key] += 1
        again = f"the same error again ({self._seen[key]} times): "
        return error if self._seen[key] == 1 or len(lines) < 2 else again + lines[-1]


def _bounded(text: str) -> str:
    """Return an error that can be shown and kept: its end, where the cause stands, without broken characters."""
    cut = len(text) - MAX_ERROR_CHARACTERS
    text = text.encode(errors="replace").decode()
    return text if cut <= 0 else f"({cut} characters left out)\n{text[cut:]}"
