r"""The supervisor: the parent of a run. It owns the processes, the controller, the record and the displays.

   +----------------------------- supervisor ------------------------------+
   |  events -> population -> controller -> dispatch, slots, matchups      |
   |                     \-> recorder: journal, TensorBoard, terminal      |
   +---^-----------------------------------------------|-------------------+
       | reports, proofs, deaths                       | edits, slot changes, exports, saves, stop
   +---|-----------------------------------------------v-------------------+
   |  learner per device: sampler (acting)  <-rollouts->  trainer          |
   +---^-----------------------------------------------|-------------------+
       | one step per unit (mailbox)                   | actions (mailbox)
   +---|-----------------------------------------------v-------------------+
   |  actors: step environments                                            |
   +-----------------------------------------------------------------------+

loop      consumes   events of the fleet: messages, deaths, hangs; signals
          produces   edits, one comparison at a time; slots that change hands; views about once per second
          waits for  the next event, at most a tenth of a second

Of the work behind the arrows, `comparisons` has the decisions, `restarts` the actors, `checkpointing` what is saved,
`resuming` what a run is continued from, and `recorder` all that is written and shown.
"""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import replace
from types import FrameType
from typing import Any, assert_never

from pbt_rl.config import Config
from pbt_rl.display.ranking import best_member
from pbt_rl.display.view import RunView
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.pbt.hypers import Values
from pbt_rl.plan import Machine
from pbt_rl.population.population import Population
from pbt_rl.population.ratings import Ratings
from pbt_rl.record.append import reason
from pbt_rl.record.claim import ClaimedRun, claim_run_folder
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.controllers import resumed_controller
from pbt_rl.run.discards import discarded_share
from pbt_rl.run.fleet import ActorFailed, Event, Fleet, InlineFleet, LearnerDied, ProcessFleet, Received
from pbt_rl.run.limits import allow_open_files, descriptors_needed
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.restarts import ActorRestarts
from pbt_rl.run.resuming import Continued, find_continued, may_resume
from pbt_rl.run.start import Start
from pbt_rl.run.state import controller_state, restore_run_state, run_state
from pbt_rl.run.throughput import Throughput
from pbt_rl.run.warm_start import WarmStart
from pbt_rl.wire.messages import (
    Applied,
    FromLearner,
    LearnerReady,
    LearnerReport,
    MemberExported,
    MemberStaged,
    PauseTraining,
    SlotChanged,
    SnapshotBegun,
)

PATIENCE_SECONDS = 0.1
VIEW_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
SAVE_SECONDS = 30.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def train(config: Config) -> int:
    """Train a population; return the exit code.

    A run of the same name is continued from its last checkpoint. Raises ConfigError or EnvSetupError before anything is
    started.
    """
    resolved = ResolvedRun.resolve(config, Machine.here())
    resolved.controller().initial(config.num_policies)  # a wrong --pbt.tune shows before a folder is made
    # Read before an old run of this name is set aside: it may be the one to begin from.
    warm = None if may_resume(config) else WarmStart.find(resolved, _warn)
    allow_open_files(descriptors_needed(resolved.plan, config.num_policies, resolved.spec.seats))
    claim = claim_run_folder(config)
    _warn(*claim.notes)
    failed = True
    try:
        continued = find_continued(claim.config, claim.folder, _warn) if claim.existing else None
        if claim.existing and continued is None:
            _warn(f"{claim.folder.path} ended before it was saved for the first time: it begins anew")
            claim.release(failed=False)
            claim = claim_run_folder(replace(claim.config, overwrite=True))
        if continued is None and warm is None:
            warm = WarmStart.find(resolved, _warn)
        supervisor = Supervisor(replace(resolved, config=claim.config), claim, continued, warm)
        if supervisor.over is None:
            code = supervisor.run()
        else:
            print(f"{claim.folder.path} has ended ({supervisor.over}): give it a larger budget to go on")
            code = 0
        failed = False
    except RunFailed:  # after it had begun: what it left explains it
        failed = False
        raise
    finally:
        _warn(claim.release(failed=failed))
    return code


def _warn(*texts: str) -> None:
    for text in filter(None, texts):
        print(f"pbt-rl: {text}", file=sys.stderr)


class Supervisor:
    """One run. continued: an existing one goes on. warm: members begin from what others have saved."""

    def __init__(
        self,
        resolved: ResolvedRun,
        claim: ClaimedRun,
        continued: Continued | None = None,
        warm: WarmStart | None = None,
    ) -> None:
        self._warm = warm
        self._resolved, self._config, self._continued = resolved, resolved.config, continued
        self._claim, folder = claim, claim.folder
        state = None if continued is None else continued.state["run"]
        controller = resolved.controller()
        self._population = _population(resolved, controller.initial(self._config.num_policies))
        if state is not None:
            controller = resumed_controller(
                self._config, resolved.table, self._config.seed, controller_state(state)
            )
        self._recorder = Recorder(resolved, folder, self._population)
        self._comparisons = Comparisons(
            resolved, self._population, controller, self._recorder, lambda: self._why_end() is not None
        )
        self._throughput = Throughput()
        self._same_plan = state is None or restore_run_state(
            state, controller, self._population, self._comparisons, self._throughput
        )
        self._checkpoints = Checkpointing(resolved, folder, self._population, self._recorder, self._state)
        self._restarts = ActorRestarts(self._config, self._recorder)
        self._controller = controller
        self._learners_ready = 0
        self._signal: int | None = None
        self._environment_seconds = 0.0
        self._closing = False
        self._next_view = 0.0
        self._next_progress = time.monotonic() + PROGRESS_SECONDS

    # -- the run ----------------------------------------------------------------------------------------------

    @property
    def over(self) -> str | None:
        """Why there is nothing left to do, if there is not: a continued run may have spent its budget."""
        return self._why_end()

    def run(self) -> int:
        """Train until a budget is spent, a signal comes or something fails; leave nothing behind."""
        previous = {number: signal.signal(number, self._note_signal) for number in (*SIGNALS, signal.SIGUSR1)}
        try:
            self._recorder.start(self._continued, self._warm)
        except OSError as error:
            raise ConfigError(f"{self._claim.folder.path} cannot be written: {reason(error)}") from error
        fleet: Fleet | None = None
        failure: Exception | None = None
        ended = "failed"
        try:
            kind = InlineFleet if self._config.mode == "serial" else ProcessFleet
            self._comparisons.first_slots()
            fleet = kind(self._resolved, self._start(), self._comparisons.first_matchups())
            self._comparisons.begin(fleet)
            ended = self._loop(fleet)
            self._save_at_end(fleet)
        except (RunFailed, EnvSetupError) as error:
            failure = error
            if fleet is not None and self._all_serve and isinstance(error, RunFailed):
                self._save_at_end(fleet)
        finally:
            self._checkpoints.close()
            if fleet is not None:
                fleet.close()
            self._finish(ended)
            for number, handler in previous.items():
                signal.signal(number, handler)
        if failure is not None:
            raise failure
        return 0 if self._signal is None else 128 + self._signal

    def _loop(self, fleet: Fleet) -> str:
        while True:
            for event in fleet.events(PATIENCE_SECONDS):
                self._handle(fleet, event)
            ended = self._why_end()
            if ended is not None and fleet.settled:
                return ended
            self._checkpoints.step(fleet)
            if self._checkpoints.due and fleet.settled and not self._comparisons.dispatch.busy:
                self._checkpoints.begin(fleet)
            now = time.monotonic()
            if now >= self._next_view:
                self._next_view = now + VIEW_SECONDS
                self._recorder.show(self._view(fleet))
            if now >= self._next_progress:
                self._next_progress = now + PROGRESS_SECONDS
                self._recorder.progress()

    def _why_end(self) -> str | None:
        if self._signal is not None:
            return f"interrupted by {signal.Signals(self._signal).name}"
        if 0 < self._config.train_for_seconds <= self._throughput.training_seconds:
            return "seconds"
        if self._population.all_stopped or self._comparisons.stuck:
            return "all members are done"
        if not self._config.searches and self._population.least_frames >= self._config.train_for_frames:
            return "frames"
        return None

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:  # what schedulers send before they end a job
            self._checkpoints.ask()
        else:
            self._signal = number

    # -- where it begins, what is saved ---------------------------------------------------------------------------

    def _start(self) -> Start:
        """Return where the processes begin."""
        if self._continued is None:
            start = Start.fresh(self._resolved.plan, [member.values for member in self._population.members])
            return start if self._warm is None else self._warm.start(start)
        return self._continued.start(
            self._population, self._comparisons.slots, self._resolved.plan, same_plan=self._same_plan
        )

    def _state(self, fleet: Fleet) -> dict[str, Any]:
        """Return what a checkpoint holds besides the learners', as JSON types."""
        return {
            "run": run_state(self._controller, self._population, self._comparisons, self._throughput),
            "record": self._recorder.positions(),
            "units": fleet.save_units(),
            "resumes": 0 if self._continued is None else self._continued.resumes,
            "best_member": best_member(self._population.views()),
        }

    @property
    def _all_serve(self) -> bool:
        """All learners are there."""
        return self._learners_ready == len(self._resolved.plan.packs)

    # -- events -----------------------------------------------------------------------------------------------

    def _handle(self, fleet: Fleet, event: Event) -> None:
        match event:
            case LearnerDied(_, text):
                self._learners_ready -= 1
                raise RunFailed(text)
            case ActorFailed():
                self._restarts.replace(fleet, event)
            case Received(pack, message):
                self._receive(fleet, pack, message)
            case _:
                assert_never(event)

    def _receive(self, fleet: Fleet, pack: int, message: FromLearner) -> None:
        match message:
            case LearnerReport():
                self._claim.started()
                self._population.take(str(pack), message)
                self._throughput.note(self._population.frames, message.stage_seconds)
                if not self._closing:
                    self._comparisons.note_report(pack)
            case Applied():
                self._comparisons.note_applied(message)
            case SlotChanged(_, proof):
                if proof is not None:
                    self._recorder.applied_on_entry(proof)
            case MemberExported(header):
                self._comparisons.dispatch.exported(header.member)
            case SnapshotBegun():
                self._checkpoints.note_begun(fleet, pack, message)
            case MemberStaged():
                self._checkpoints.note_staged(fleet, pack, message)
            case LearnerReady():
                self._learners_ready += 1
                if self._all_serve:
                    self._begin_to_train()
            case _:
                assert_never(message)

    def _begin_to_train(self) -> None:
        """Every learner is there, and no frame was sampled yet."""
        if self._continued is None:
            self._comparisons.observe()  # a search sets how far its members train first
        else:
            self._comparisons.go_on()  # the state was saved after a comparison
        self._checkpoints.start()

    # -- views ------------------------------------------------------------------------------------------------

    def _view(self, fleet: Fleet | None) -> RunView:
        population, dispatch, rate = self._population, self._comparisons.dispatch, self._throughput.rate()
        spent = 0.0
        if fleet is not None:
            total = fleet.environment_seconds()
            spent, self._environment_seconds = total - self._environment_seconds, total
        return RunView(
            env_id=self._config.env,
            name=str(self._config.name),
            seconds=self._throughput.seconds,
            frames=population.frames,
            steps=population.steps,
            frames_per_second=rate,
            seconds_left=self._seconds_left(rate),
            members=population.views(),
            replacements=dispatch.replacements,
            mutations=dispatch.mutations,
            actors=self._resolved.plan.actors,
            actors_restarted=self._restarts.count,
            discarded_rollouts=population.discarded,
            lag_mean=population.lag_mean,
            lag_max=population.lag_max,
            stage_seconds=self._throughput.take_stages(spent),
            seats=self._resolved.spec.seats,
            discarded_share=discarded_share(self._resolved, population.discarded, population.steps),
        )

    def _seconds_left(self, rate: float) -> float | None:
        left = []
        if rate > 0 and not self._config.searches:  # how many members a search will stop is unknown
            left.append(self._population.missing_frames(self._config.train_for_frames) / rate)
        if self._config.train_for_seconds > 0:
            left.append(max(0.0, self._config.train_for_seconds - self._throughput.training_seconds))
        return min(left, default=None)

    # -- the end ----------------------------------------------------------------------------------------------

    def _save_at_end(self, fleet: Fleet) -> None:
        """Have all decisions applied and the run saved; nothing is trained meanwhile."""
        self._closing = True
        for pack in range(len(self._resolved.plan.packs)):
            fleet.send(pack, PauseTraining())
        checkpoints, dispatch = self._checkpoints, self._comparisons.dispatch
        checkpoints.ask()
        deadline = time.monotonic() + SAVE_SECONDS
        while (checkpoints.busy or dispatch.busy) and time.monotonic() < deadline:
            for event in fleet.events(PATIENCE_SECONDS):
                if not isinstance(event, ActorFailed):  # no actor is needed any more
                    self._handle(fleet, event)
            checkpoints.step(fleet)
            if checkpoints.due and not dispatch.busy:
                checkpoints.begin(fleet)
        if checkpoints.busy:
            self._recorder.note(f"the run was not saved within {SAVE_SECONDS:.0f} s")

    def _finish(self, ended: str) -> None:
        self._recorder.finish(
            self._view(None),
            ended=ended,
            frames_per_second_steady=self._throughput.steady_rate(),
            replacement_milliseconds=self._comparisons.replacement_milliseconds,
            last_stage_seconds=self._throughput.last_stretch(),
            patient=lambda: self._signal is None and ended != "failed",
        )


def _population(resolved: ResolvedRun, initial: list[Values]) -> Population:
    config, spec = resolved.config, resolved.spec
    return Population(
        initial,
        config.pbt.objective_episodes,
        spec.frame_skip,
        judged_by=config.matchup.objective,
        ratings=Ratings(config.num_policies, config.matchup.elo_k) if spec.seats > 1 else None,
        tasks=spec.tasks,
        task_cap=spec.task_cap,
        min_rounds=config.pbt.min_episodes,
    )
