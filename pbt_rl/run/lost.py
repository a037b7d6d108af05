"""Replacement of learners and actors that died or hang. Too many replacements end the run.

    LearnerLost -> kill the learner and its actors  drop their messages
                -> abandon a checkpoint in progress
                -> Dispatch.lost                    settle pending decisions, read restore points of members on slots
                -> a new learner and new actors     load the restore points, as in a resumed run

Members with a slot of the lost learner continue from their restore points, usually in the newest checkpoint. Other
packs train meanwhile. Parked members and remembered states (docs/architecture.md) lose no training, because the store
has their weights. If the lost learner had not yet written a state to the store, its restore point replaces it.

If a machine is lost, its learner restarts on a free machine. If no machine is free, the members move to running packs,
and wait there for a slot. As soon as a machine is free, the learner restarts without members, and its slots are
assigned to waiting members. If the loss of a machine is announced (MachineLeaving), a checkpoint is written before the
learner is replaced.

The population clock and the frames of a member never decrease. The journal records the frames of lost training.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from pbt_rl.actors.messages import LearnerReport, Load
from pbt_rl.config import Config
from pbt_rl.display.terminal import age
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
    """Replacement of learners. The run ends with an error if a learner must not be replaced (see `_refused`).

    save_every_seconds: see --save-every-seconds. start: initial state of the run; set it before the run begins.
    count: number of replaced learners.
    """

    save_every_seconds: float
    population: Population
    comparisons: Comparisons
    checkpoints: Checkpointing
    recorder: Recorder
    throughput: Throughput
    start: Start = field(init=False)
    count: int = field(default=0, init=False)
    _replaced: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_REPLACED), init=False)
    """`time.monotonic()` of the last MOST_REPLACED replacements, except after the loss of a machine."""
    _updates: dict[int, dict[int, int]] = field(default_factory=dict, init=False)
    """Pack -> member -> updates before the learner began. If unknown: updates in its first report about the member."""
    _trained: set[int] = field(default_factory=set, init=False)
    """Packs whose learner has completed an update."""
    _leaving: dict[int, tuple[LearnerLost, int]] = field(default_factory=dict, init=False)
    """Pack whose machine will leave -> (event, count of checkpoints that had begun at the event)."""

    def note_report(self, pack: int, report: LearnerReport) -> None:
        """Record whether a learner has trained.

        A learner that died or hung before training is not replaced, unless its machine was lost.
        """
        first, is_new = self._updates.setdefault(pack, {}), not (self.start.resumes or self.count)
        if any(
            one.updates > first.setdefault(one.member, 0 if is_new else one.updates) for one in report.members
        ):
            self._trained.add(pack)

    def replace(self, fleet: Fleet, lost: LearnerLost) -> None:
        """Replace a learner. Raises RunFailed if the learner may not be replaced or its members cannot be restored.

        Raises ConfigError if the learner failed before training because of a user error.
        """
        self._leaving.pop(lost.pack, None)
        fleet.kill(lost.pack)
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
        """Assign the slots of a restarted learner to members without a slot. Call this when the learner is ready."""
        self._scatter(fleet)
        self.comparisons.change_slots()

    def _scatter(self, fleet: Fleet) -> None:
        """Move the members of packs that have no machine to running packs."""
        slots = self.comparisons.slots
        for pack in range(len(slots.packs)):
            if slots.of(pack) and fleet.waits(pack) and self.comparisons.scatter(pack):
                fleet.replace_learner(pack, self._start_again(pack))

    def leave(self, lost: LearnerLost) -> None:
        """Request a checkpoint because a machine will leave. After the checkpoint, `step` replaces the learner."""
        self._leaving[lost.pack] = (lost, self.checkpoints.begun)
        self.checkpoints.when.asked = True

    def step(self, fleet: Fleet) -> None:
        """Replace the learners of machines that will leave, if the checkpoint that `leave` requested is complete."""
        for lost, begun in [*self._leaving.values()]:
            if self.checkpoints.whole > begun:
                self.replace(fleet, lost)

    def _start_again(self, pack: int) -> Start:
        """Return the initial state of a pack's new learner, after all decisions so far."""
        slots: list[tuple[Load | None, ...]] = [()] * len(self.comparisons.slots.packs)
        slots[pack] = self.comparisons.dispatch.first_loads(pack)
        seconds = self.throughput.training_seconds
        return replace(self.start, slots=slots, learners=(), vector_envs=(), seconds=seconds)

    def saved_text(self) -> str:
        """Describe the checkpoint from which the run can be resumed."""
        newest = self.checkpoints.newest
        if newest is not None:
            seconds = time.time() - newest.manifest.time
            return f"The run can be resumed from checkpoint {newest.path.name}, saved {age(seconds)} ago"
        return (
            "The run can be resumed again from its last checkpoint"
            if self.start.resumes
            else "The run was never saved"
        )

    def _refused(self, lost: LearnerLost) -> str:
        """Return the reason not to replace a learner. Empty if the learner may be replaced."""
        if lost.machine:
            return ""
        if lost.pack not in self._trained:
            return "this learner had not trained yet"
        now = time.monotonic()
        if sum(now - then < WITHIN_SECONDS for then in self._replaced) >= MOST_REPLACED:
            return f"{MOST_REPLACED} learners were already replaced within the last hour"
        saved = self.checkpoints.newest is not None or self.start.resumes
        if not saved and self.throughput.training_seconds >= self.save_every_seconds:
            return "its members were never saved and would restart from initial weights"
        return ""


WINDOW_MINUTES = 10
"""Minutes for which a restart counts for --max-actor-restarts. Rare environment failures therefore do not end a run, if
the actor makes progress between them (FEW_STEPS)."""
WORKED_STEPS = 1000
"""Minimum vector env steps of an actor that is restarted after an interface violation. After fewer steps, the run
ends."""
FEW_STEPS = 100
"""Least number of vector env steps between two restarts that counts as progress."""
MAX_ERROR_CHARACTERS = 10_000
ADDRESS = re.compile("0x[0-9a-f]+")
"""Memory address in an error text. Addresses are ignored when errors of two processes are compared."""


@dataclass(eq=False)
class ActorRestarts:
    """Restarts of actors. After too many restarts (see `_check_rate`), the run ends with an error."""

    config: Config
    recorder: Recorder
    count: int = field(default=0, init=False)
    _recent: deque[float] = field(default_factory=deque, init=False)
    """`time.monotonic()` of each restart in the last WINDOW_MINUTES."""
    _steps: dict[int, int] = field(default_factory=dict, init=False)
    """Actor -> total steps of its vector envs at the last restart."""
    _for_nothing: Counter[int] = field(default_factory=Counter, init=False)
    """Actor -> number of consecutive restarts without progress."""
    _seen: Counter[int] = field(default_factory=Counter, init=False)
    """Hash of an error -> number of restarts with this error."""

    def replace(self, fleet: Fleet, failed: ActorFailed) -> None:
        """Restart an actor.

        Raises EnvSetupError if the actor failed before its first actions and neither hung nor was killed, or if the
        environment violates its interface before WORKED_STEPS. Raises RunFailed after too many restarts (see
        `_check_rate`), or if the actor cannot be started.
        """
        steps, text = fleet.actions_given(failed.actor), _bounded(failed.text)
        if failed.user_error and steps < WORKED_STEPS:
            raise EnvSetupError(text)
        if steps == 0 and not (failed.hung or failed.killed):
            raise EnvSetupError(
                f"{self.config.env} cannot be used: its construction or reset raised an error.\n{text}"
            )
        self.count += 1
        self.recorder.actor_restarted(replace(failed, text=text), self._shortened(text.strip()))
        self._check_rate(failed.actor, steps, text)
        try:
            fleet.restart_actor(failed.actor)
        except OSError as error:  # too many processes, too little memory
            raise RunFailed(
                f"actor {failed.actor} could not be restarted: {error}. Cause of the restart:\n{text}"
            ) from error

    def _check_rate(self, actor: int, steps: int, text: str) -> None:
        """Raise RunFailed after more than --max-actor-restarts restarts within WINDOW_MINUTES.

        Also raise RunFailed if this actor was restarted more often than that in a row, with fewer than FEW_STEPS steps
        after each restart.
        steps: all steps of the actor's vector envs so far.
        """
        limit, now = self.config.max_actor_restarts, time.monotonic()
        self._recent.append(now)
        while self._recent[0] < now - 60 * WINDOW_MINUTES:
            self._recent.popleft()
        taken, self._steps[actor] = steps - self._steps.get(actor, 0), steps
        self._for_nothing[actor] = self._for_nothing[actor] + 1 if taken < FEW_STEPS else 0
        too_many = f"times, more than --max-actor-restarts {limit}"
        if len(self._recent) > limit:
            raise RunFailed(
                f"actors were restarted {len(self._recent)} {too_many} within {WINDOW_MINUTES} minutes. Last cause:\n"
                f"{text}"
            )
        if self._for_nothing[actor] > limit:
            raise RunFailed(
                f"actor {actor} was restarted {self._for_nothing[actor]} {too_many}, with fewer than {FEW_STEPS} "
                f"steps in between. Last cause:\n{text}"
            )

    def _shortened(self, error: str) -> str:
        """Return an error text. If an error with several lines is repeated, return only a note and its last line."""
        key, lines = hash(ADDRESS.sub("", error)), error.splitlines()
        self._seen[key] += 1
        again = f"the same error again ({self._seen[key]} times): "
        return error if self._seen[key] == 1 or len(lines) < 2 else again + lines[-1]


def _bounded(text: str) -> str:
    """Truncate an error text to its last characters, which contain the cause. Replace invalid characters."""
    cut = len(text) - MAX_ERROR_CHARACTERS
    text = text.encode(errors="replace").decode()
    return text if cut <= 0 else f"({cut} characters left out)\n{text[cut:]}"
