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

Of the work behind the arrows, `comparisons` has the decisions, `restarts` the actors, `saving` the weights and
`recorder` all that is written and shown.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from types import FrameType
from typing import assert_never

from pbt_rl.config import Config
from pbt_rl.display.view import RunView
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import RunFailed
from pbt_rl.pbt.hypers import Values
from pbt_rl.plan import Machine
from pbt_rl.population.population import Population
from pbt_rl.population.ratings import Ratings
from pbt_rl.record.folder import RunFolder, create_run_folder
from pbt_rl.run.comparisons import Comparisons
from pbt_rl.run.discards import discarded_share
from pbt_rl.run.estimate import check_memory
from pbt_rl.run.fleet import ActorFailed, Event, Fleet, InlineFleet, LearnerDied, ProcessFleet, Received
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.restarts import ActorRestarts
from pbt_rl.run.saving import WeightSaver
from pbt_rl.run.throughput import Throughput
from pbt_rl.wire.messages import (
    Applied,
    FromLearner,
    LearnerReady,
    LearnerReport,
    MemberExported,
    MemberSaved,
    SaveFailed,
    SlotChanged,
)

PATIENCE_SECONDS = 0.1
VIEW_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
SAVE_SECONDS = 30.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def train(config: Config) -> int:
    """Train a population; return the exit code. Raises ConfigError or EnvSetupError before anything is started."""
    resolved = ResolvedRun.resolve(config, Machine.here())
    check_memory(resolved)
    resolved.controller().initial(config.num_policies)  # a wrong --pbt.tune shows before a folder is made
    config, folder = create_run_folder(config)
    return Supervisor(replace(resolved, config=config), folder).run()


class Supervisor:
    """One run."""

    def __init__(self, resolved: ResolvedRun, folder: RunFolder) -> None:
        self._resolved, self._config = resolved, resolved.config
        controller = resolved.controller()
        self._initial = controller.initial(self._config.num_policies)
        self._population = _population(resolved, self._initial)
        self._recorder = Recorder(resolved, folder, self._population)
        self._comparisons = Comparisons(
            resolved, self._population, controller, self._recorder, lambda: self._why_end() is not None
        )
        self._weights = WeightSaver(resolved, folder, self._population, self._recorder)
        self._restarts = ActorRestarts(self._config, self._recorder)
        self._throughput = Throughput()
        self._learners_ready = 0
        self._signal: int | None = None
        self._environment_seconds = 0.0
        self._next_view = 0.0
        self._next_progress = time.monotonic() + PROGRESS_SECONDS

    # -- the run ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Train until a budget is spent, a signal comes or something fails; leave nothing behind."""
        previous = {number: signal.signal(number, self._note_signal) for number in SIGNALS}
        self._recorder.start()
        fleet: Fleet | None = None
        failure: Exception | None = None
        ended = "failed"
        try:
            kind = InlineFleet if self._config.mode == "serial" else ProcessFleet
            fleet = kind(self._resolved, self._initial, self._comparisons.first_matchups())
            self._comparisons.begin(fleet)
            ended = self._loop(fleet)
            self._save_best(fleet)
        except (RunFailed, EnvSetupError) as error:
            failure = error
        finally:
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
            if ended is not None:
                return ended
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
        self._signal = number

    # -- events -----------------------------------------------------------------------------------------------

    def _handle(self, fleet: Fleet, event: Event) -> None:
        match event:
            case LearnerDied(_, text):
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
                self._population.take(str(pack), message)
                self._throughput.note(self._population.frames, message.stage_seconds)
                self._comparisons.note_report(pack)
                self._weights.save_if_due(fleet)
            case Applied():
                self._comparisons.note_applied(message)
            case SlotChanged(_, proof):
                if proof is not None:
                    self._recorder.applied_on_entry(proof)
            case MemberExported(member):
                self._comparisons.dispatch.exported(member)
            case MemberSaved() | SaveFailed():
                self._weights.note(message)
            case LearnerReady():
                self._learners_ready += 1
                if self._learners_ready == len(self._resolved.plan.packs):
                    self._comparisons.observe()  # before any frame: a search sets how far its members train first
            case _:
                assert_never(message)

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

    def _save_best(self, fleet: Fleet) -> None:
        """Have all decisions applied and the best member's weights written."""
        best, path = self._weights.save_at_end(fleet)
        deadline = time.monotonic() + SAVE_SECONDS

        def waiting() -> bool:
            return self._comparisons.dispatch.busy or not self._weights.is_done(path)

        while waiting() and time.monotonic() < deadline:
            for event in fleet.events(PATIENCE_SECONDS):
                match event:
                    case Received(_, LearnerReport()) | ActorFailed():
                        pass  # a report could bring new decisions, and no actor is needed any more
                    case _:
                        self._handle(fleet, event)
        if not self._weights.is_done(path):
            self._recorder.note(f"the weights of member {best} were not saved within {SAVE_SECONDS:.0f} s")

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
