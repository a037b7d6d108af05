r"""Supervisor: the parent process of a run, with the controller, the record and the displays.

   +----------------------------- supervisor ------------------------------+
   |  events -> population -> controller -> dispatch, slots, matchups      |
   |                     \-> recorder: journal, TensorBoard, terminal      |
   +---^-----------------------------------------------|-------------------+
       | reports, acknowledgements, deaths             | loads, saves, values, stop
   +---|-----------------------------------------------v-------------------+
   |  learner per device: sampler (acting)  <-rollouts->  trainer          |
   +---^-----------------------------------------------|-------------------+
       | one step per vector env (mailbox)             | actions (mailbox)
   +---|-----------------------------------------------v-------------------+
   |  actors: step environments                                            |
   +-----------------------------------------------------------------------+

loop      consumes   events of the fleet: messages, deaths, hangs; signals
          produces   loads and saves, one comparison at a time; slot swaps; views, at most once per second
          waits for  the next event, at most 0.1 s (serial mode: trains meanwhile)

Other modules of this package contain parts of the supervisor: `comparisons` (execution of decisions), `lost`
(replacement of dead processes), `checkpointing`, `ending` (end conditions), `resuming`, and `recorder` (records and
displays).
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, assert_never

from pbt_rl.actors.messages import (
    Acknowledgement,
    FromLearner,
    LearnerReady,
    LearnerReport,
    LearnerSaved,
    PauseTraining,
    Saved,
)
from pbt_rl.actors.state_pool import StatePool
from pbt_rl.controllers.decisions import Decision
from pbt_rl.display.ranking import best_member
from pbt_rl.display.view import RunView
from pbt_rl.errors import ConfigError, EnvSetupError, RunFailed
from pbt_rl.processes.signals import Presses, handling
from pbt_rl.record.append import reason
from pbt_rl.record.run_lock import LockedRun
from pbt_rl.run.callbacks import Callbacks
from pbt_rl.run.checkpointing import Checkpointing
from pbt_rl.run.clocks import Every, RunningClock, Timeout
from pbt_rl.run.comparisons import Comparisons, make_slots
from pbt_rl.run.continued import Continued
from pbt_rl.run.ending import RunEnd
from pbt_rl.run.fleet import (
    ActorFailed,
    Event,
    Fleet,
    LearnerLost,
    MachineLeaving,
    Notice,
    ProcessFleet,
    Received,
    StartsFleet,
)
from pbt_rl.run.lost import ActorRestarts, LostLearners
from pbt_rl.run.memory import Start, make_store
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun, resumed_controller
from pbt_rl.run.resuming import controller_state, fitting_state, restore_run_state, run_state
from pbt_rl.run.serial import SerialFleet, SerialPack
from pbt_rl.run.throughput import Throughput
from pbt_rl.run.views import LEAST_PROGRESS_SECONDS, VIEW_SECONDS, progress_gap, run_view, view_gap
from pbt_rl.run.warm_start import WarmStart

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TIMEOUT_SECONDS = 0.1
SAVE_SECONDS = 30.0
"""Maximum time without a saved or written member in the last checkpoint. (40 members on a slow disk take minutes.)"""
ROLLOUT_SECONDS = 300.0
"""Maximum wait for learners in the last checkpoint. (The learner of a simulator completes its rollout first.)"""
SAY_SECONDS = 5.0
"""Interval of the messages to the user while the last checkpoint waits for learners."""
ANSWER_SECONDS = 8.0
"""Maximum heartbeat age of a learner during the last checkpoint."""


class Supervisor:
    """Supervisor of one run.

    locked: folder of the run, locked by this process.
    continued: saved state of a run to resume. first: warm start of the members. callbacks: user functions.
    fleet: function that starts the processes. None: start them on this machine (serial mode: in this process).
    """

    def __init__(
        self,
        resolved: ResolvedRun,
        locked: LockedRun,
        continued: Continued | None = None,
        first: WarmStart | None = None,
        callbacks: Callbacks | None = None,
        fleet: StartsFleet | None = None,
    ) -> None:
        self._first = first
        serial = resolved.config.mode == "serial"
        self._starts_fleet = fleet or (partial(SerialFleet, supervisor=self) if serial else ProcessFleet)
        self._resolved, self._config, self._continued = resolved, resolved.config, continued
        self._locked, folder = locked, locked.folder
        state = None if continued is None else continued.state["run"]
        changed = {} if continued is None else continued.changed
        self._given = {} if continued is None else continued.given(resolved.spec.shaping)
        controller = resolved.controller()
        self._population = resolved.population(controller.initial(self._config.members))
        if state is not None:
            with fitting_state(folder, changed):
                controller = resumed_controller(
                    self._config, resolved.table, self._config.seed, controller_state(state), self._given
                )
        self._throughput = Throughput(RunningClock())
        callbacks = callbacks or Callbacks()
        self._recorder = Recorder(
            resolved, folder, self._population, callbacks, resumes=continued is not None
        )
        slots = make_slots(resolved, self._population)
        self.end = RunEnd(self._config, self._population, slots, self._throughput, callbacks)
        self._comparisons = Comparisons(
            resolved,
            self._population,
            slots,
            controller,
            self._recorder,
            self.end,
            lambda: self._throughput.training_seconds,
        )
        with fitting_state(folder, changed):
            self._same_plan = state is None or restore_run_state(
                state, self._population, self._comparisons, self._throughput
            )
        self._checkpoints = Checkpointing(resolved, folder, self._comparisons.dispatch, self._recorder)
        self._restarts = ActorRestarts(self._config, self._recorder)
        self._lost = LostLearners(
            self._config.save_every_seconds,
            self._population,
            self._comparisons,
            self._checkpoints,
            self._recorder,
            self._throughput,
        )
        self._controller = controller
        self._begun = self._closing = self._saved_at_end = False
        self._presses = Presses()
        self._environment_seconds = 0.0
        self._views, self._progress = Every(VIEW_SECONDS, at_once=True), Every(LEAST_PROGRESS_SECONDS)

    # -- the run ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Train until an end condition of the run is met (`RunEnd`). Return 0, or 128 + the number of the signal.

        Raises ConfigError or EnvSetupError if the user must fix the cause, and RunFailed if the run fails.
        """
        signals = handling((*SIGNALS, signal.SIGUSR1), self._note_signal)
        with signals, contextlib.closing(self._presses):  # handle signals before the journal exists
            try:
                self._recorder.start(self._continued, self._first, self._throughput.spent.seconds)
            except OSError as error:
                raise ConfigError(f"{self._locked.folder.path} cannot be written: {reason(error)}") from error
            self._run()
        return 0 if self.end.signal is None else 128 + self.end.signal

    def _run(self) -> None:
        fleet: Fleet | None = None
        failure: Exception | None = None
        ended = "failed"
        end_pool = contextlib.ExitStack()
        try:
            self._comparisons.note_first_slots(range(len(self._resolved.plan.packs)))
            start, pool = self._start()
            end_pool.callback(pool.close)
            self._lost.start = start
            matchups = self._comparisons.first_matchups()
            fleet = self._starts_fleet(self._resolved, start, matchups, pool)
            self._comparisons.send_to(fleet)
            ended = self._loop(fleet)
            unsaved = self._save_at_end(fleet)
            if unsaved and self.end.signal is None:
                failure = RunFailed(f"the run has ended ({ended}), and {unsaved}")
        except (RunFailed, EnvSetupError) as error:
            ended, failure = "failed", error
            saves = self._may_save and not self._closing and isinstance(error, RunFailed)
            if fleet is not None and saves:
                self._save_at_end(fleet)
        finally:
            with contextlib.ExitStack() as end:  # its calls run in reverse order, even if one of them raises
                end.push(end_pool)
                end.callback(self._finish, ended)
                if fleet is not None:
                    end.callback(fleet.close, at_once=self._hurried)
                end.callback(self._checkpoints.close, at_once=self._hurried)
        if failure is not None:
            raise failure

    def _loop(self, fleet: Fleet) -> str:
        while True:
            for event in fleet.events(TIMEOUT_SECONDS):
                self._handle(fleet, event)
            self._comparisons.look()
            ended = self.end.why
            if ended is not None and (fleet.settled or self._hurried):
                return ended
            self._checkpoints.step()
            self._lost.step(fleet)
            idle = self._may_save and fleet.settled and not self._comparisons.dispatch.busy
            if self._checkpoints.due and idle:
                self._begin_checkpoint(fleet)
            if self._views.due():
                self._recorder.show(self._view(fleet))
                self._views.done(view_gap)
            if self._progress.due():
                self._recorder.progress()
                self._progress.done(lambda _: progress_gap(self._throughput.seconds))

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:  # cluster schedulers send it before they end a job
            self._checkpoints.when.asked = True
            return
        self.end.signal = self.end.signal or number
        if number == signal.SIGINT:
            self._presses.note()

    @property
    def _hurried(self) -> bool:
        """True after a second Ctrl-C, which ends the run without waiting."""
        return self._presses.count > 1

    # -- initial state, saved state -------------------------------------------------------------------------------

    def _start(self) -> tuple[Start, StatePool]:
        """Build the initial state of the processes, and the pool of states.

        Raises ConfigError if a saved state cannot be read.
        """
        values = [member.values for member in self._population.members]
        store, pool, names = make_store(self._resolved, values[0])
        self._checkpoints.names = names
        dispatch, plan = self._comparisons.dispatch, self._resolved.plan
        if self._continued is not None:
            checkpoint = self._continued.checkpoint
            dispatch.open_store(store, checkpoint.states(names), checkpoint.path.name)
        else:
            dispatch.open_store(store, {} if self._first is None else self._first.states(values, names))
        slots = [dispatch.first_loads(pack) for pack in range(len(plan.packs))]
        start = Start(slots, values[0], resumes=self._resumes, seconds=self._throughput.training_seconds)
        if self._continued is not None and self._same_plan:
            learners, vector_envs = self._continued.state["learners"], self._continued.vector_envs(plan)
            start = replace(start, learners=learners, vector_envs=vector_envs)
        return start, pool

    @property
    def _resumes(self) -> int:
        """Number of resumes of the run, including the present resume."""
        return 0 if self._continued is None else self._continued.resumes

    def _state(self, fleet: Fleet) -> dict[str, Any]:
        """Return the state for a checkpoint, without members and learners, as JSON types."""
        without_controls = self._population.views()[: self._config.num_policies]
        return {
            "run": run_state(self._controller, self._population, self._comparisons, self._throughput),
            "record": self._recorder.positions(),
            "units": fleet.save_vector_envs(),
            "resumes": self._resumes,
            "best_member": best_member(without_controls),
        }

    @property
    def _ready(self) -> set[int]:
        """Packs whose learner has started."""
        return self._comparisons.slots.serving

    @property
    def _all_serve(self) -> bool:
        """True if all learners have started."""
        return len(self._ready) == len(self._resolved.plan.packs)

    @property
    def _may_save(self) -> bool:
        """True if training has begun. Without --nodes, all learners must also have started."""
        return self._begun and (self._resolved.spread or self._all_serve)

    def _begin_checkpoint(self, fleet: Fleet) -> None:
        self._checkpoints.begin_checkpoint(fleet, self._ready, partial(self._state, fleet))

    # -- events -----------------------------------------------------------------------------------------------

    def _handle(self, fleet: Fleet, event: Event) -> None:
        match event:
            case LearnerLost():
                self._lost.replace(fleet, event)
            case MachineLeaving(lost):
                self._lost.leave(lost)
            case ActorFailed():
                self._restarts.replace(fleet, event)
            case Notice(text):
                self._recorder.warn(text)
            case Received(pack, message):
                self._receive(fleet, pack, message)
            case _:
                assert_never(event)

    def _receive(self, fleet: Fleet, pack: int, message: FromLearner) -> None:
        match message:
            case LearnerReport():
                self._note_report(pack, message)
                if not self._closing:
                    self._comparisons.note_report(pack)
            case Acknowledgement():
                self._comparisons.note_applied(message)
            case Saved():
                self._checkpoints.note_saved(pack, self._comparisons.note_saved(message))
            case LearnerSaved():
                self._checkpoints.note_learner_saved(pack, message)
            case LearnerReady(note):
                self._note_ready(fleet, pack, note)
            case _:
                assert_never(message)

    def _note_report(self, pack: int, report: LearnerReport) -> None:
        self._locked.started()
        self._population.take(str(pack), report)
        self._lost.note_report(pack, report)
        self._throughput.note(self._population.frames, report.stage_seconds)

    def compare(self, pack: SerialPack, report: LearnerReport) -> Sequence[Decision]:
        """Apply a learner's report. Return the controller's decisions, if any. `train_serially` calls this method."""
        self._note_report(pack.number, report)
        return self._comparisons.compare(pack.number)

    def exchange(self, decisions: Sequence[Decision]) -> None:
        """Send decisions to the learners. `train_serially` calls this method."""
        self._comparisons.exchange(decisions)

    def _note_ready(self, fleet: Fleet, pack: int, note: str) -> None:
        """Record that a learner is ready. note: log line of the learner, or empty."""
        self._ready.add(pack)
        self._comparisons.dispatch.started(pack)
        if note:
            self._recorder.warn(f"learner {pack}: {note}")
        if self._begun:
            self._lost.found(fleet)
        elif self._all_serve:
            self._begin_to_train()

    def _begin_to_train(self) -> None:
        """Begin a new run or continue a resumed run, because all learners are ready. Schedule checkpoints."""
        self._begun = True
        if self._continued is None:
            # The first decisions of a search set the budgets of all members.
            self._comparisons.exchange(self._comparisons.compare())
        else:
            self._comparisons.go_on(self._given)
        self._checkpoints.start()

    # -- views ------------------------------------------------------------------------------------------------

    def _view(self, fleet: Fleet | None) -> RunView:
        spent = 0.0
        if fleet is not None:
            total = fleet.environment_seconds()
            spent, self._environment_seconds = total - self._environment_seconds, total
        return run_view(
            self._resolved,
            self._controller,
            self._population,
            self._comparisons.dispatch,
            self._throughput,
            spent,
            learns=fleet is not None and fleet.learns(),
            actors_restarted=self._restarts.count,
            learners_replaced=self._lost.count,
            begun=self._begun,
            stepping=self._stepping(fleet),
        )

    def _stepping(self, fleet: Fleet | None) -> int:
        """Count the actors that have received actions, for the displays. 0 after the first frames of training."""
        if fleet is None or self._throughput.trains:
            return 0
        return sum(fleet.actions_given(actor) > 0 for actor in range(self._resolved.plan.actors))

    # -- the end ----------------------------------------------------------------------------------------------

    def _save_at_end(self, fleet: Fleet) -> str:
        """If training has begun, wait for pending decisions, and save the run. Return an error message, or ""."""
        self._closing = True
        self._throughput.end()
        if not self._begun:
            return ""
        reason = self._save_last(fleet)
        if not reason:
            self._saved_at_end = True
            return ""
        unsaved = f"was not saved at its end: {reason}. {self._lost.saved_text()}"
        self._recorder.warn(f"the run {unsaved}")
        return unsaved

    def _save_last(self, fleet: Fleet) -> str:
        """Pause all learners, and save the run. Return the reason of a failure, or an empty text."""
        checkpoints, dispatch = self._checkpoints, self._comparisons.dispatch
        for pack in range(len(self._resolved.plan.packs)):
            fleet.send(pack, PauseTraining())
        checkpoints.when.ask_last()
        moved, timeout = checkpoints.moved, Timeout(SAVE_SECONDS)
        rollout, slow = Timeout(ROLLOUT_SECONDS), Every(SAY_SECONDS)
        while checkpoints.busy or dispatch.busy:
            if self._hurried:
                return "it was interrupted again"
            waits = (dispatch.busy or checkpoints.waits_for_learners) and not rollout.over()
            if waits or moved != checkpoints.moved:
                moved = checkpoints.moved
                timeout.renew()
            if waits and slow.due():
                again = "; another Ctrl-C ends the run without saving it" if self._presses.count else ""
                self._recorder.note(f"the run will be saved after the current rollout{again}")
            if timeout.over():
                return f"nothing could be written for {SAVE_SECONDS:.0f} s"
            for event in fleet.events(TIMEOUT_SECONDS):
                if isinstance(event, LearnerLost):
                    return event.text
                if not isinstance(event, ActorFailed):  # actors are not needed any more
                    self._handle(fleet, event)
            silent = next((p for p in self._ready if fleet.heartbeat_age_seconds(p) > ANSWER_SECONDS), None)
            if silent is not None:
                return f"learner {silent} does not answer"
            checkpoints.step()
            if checkpoints.due and not dispatch.busy:
                self._begin_checkpoint(fleet)
        return checkpoints.failure

    def _finish(self, ended: str) -> None:
        def may_wait() -> bool:
            return self.end.signal is None and ended != "failed"

        self._checkpoints.finish_evaluations(may_wait, saved_at_end=self._saved_at_end)
        view = self._view(None)
        saved = self._checkpoints.newest if self._saved_at_end else None
        if saved is not None and may_wait():
            trained = self._throughput.training_seconds
            view = self._checkpoints.evaluations.judged(
                view, self._resolved.spec, saved, trained, lambda: self.end.signal is not None
            )
        self._recorder.finish(
            view,
            ended=ended,
            frames_per_second_steady=self._throughput.steady_rate(),
            replacement_milliseconds=self._comparisons.replacement_times,
            may_wait=may_wait,
            saved_at_frames=None if saved is None else saved.frames,
        )
