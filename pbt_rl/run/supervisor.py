"""The supervisor: the parent of a run. It owns the processes, the controller, the record and the displays.

   +----------------------------- supervisor -----------------------------+
   |  events -> population -> controller -> dispatch, turns; displays     |
   +---^-----------------------------------------------|-----------------+
       | reports, episodes, applied, deaths            | edits, seats, export, save, stop
   +---|-----------------------------------------------v-----------------+
   |  learner a device: sampler (acting)  <-rollouts->  trainer (learning) |
   +---^-----------------------------------------------|-----------------+
       | one step a unit (mailbox)                     | actions (mailbox)
   +---|-----------------------------------------------v-----------------+
   |  actors: step environments                                           |
   +----------------------------------------------------------------------+

loop      consumes   events of the fleet: messages, deaths, hangs; signals
          produces   edits, one comparison at a time; slots that change hands; views about once a second
          waits for  the next event, at most a tenth of a second
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_rl.config import Config
from pbt_rl.display.ranking import best_member
from pbt_rl.display.tensorboard import TensorBoard
from pbt_rl.display.terminal import Terminal, applied_text, print_leaderboard, slot_text
from pbt_rl.display.view import RunView
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import RunFailed
from pbt_rl.pbt.changes import changes
from pbt_rl.pbt.hypers import SHAPING, Values
from pbt_rl.plan import Machine
from pbt_rl.population.dispatch import Dispatch
from pbt_rl.population.matchmaking import games_between
from pbt_rl.population.population import Population
from pbt_rl.population.ratings import Ratings
from pbt_rl.population.slots import Slots
from pbt_rl.record.checkpoint import weights_path
from pbt_rl.record.folder import create_run_folder, to_json
from pbt_rl.record.journal import Journal
from pbt_rl.record.summary import write_summary
from pbt_rl.run.describe import describe_plan
from pbt_rl.run.fleet import Event, Fleet, InlineFleet, ProcessFleet
from pbt_rl.run.matchups import RunMatchups
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.throughput import Throughput
from pbt_rl.wire.messages import Applied, LearnerReport, SlotChange

PATIENCE_SECONDS = 0.1
VIEW_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
SAVE_SECONDS = 30.0
EXIT_OK, EXIT_FAILED = 0, 1


def train(config: Config) -> int:
    """Train a population; returns the exit code. Raises ConfigError or EnvSetupError before anything started."""
    facts = ResolvedRun.resolve(config, Machine.here())
    facts.controller().initial(config.num_policies)  # a wrong --pbt.tune shows before a folder is made
    config, folder = create_run_folder(config)
    facts = ResolvedRun(config, facts.options, facts.spec, facts.plan, facts.table)
    return Supervisor(facts, folder).run()


class Supervisor:
    """One run."""

    def __init__(self, facts: ResolvedRun, folder: Path) -> None:
        config = facts.config
        self._facts, self._config, self._folder = facts, config, folder
        self._controller = facts.controller()
        initial = self._controller.initial(config.num_policies)
        self._population = Population(
            initial,
            config.pbt.objective_episodes,
            facts.spec.frame_skip,
            judged_by=config.matchup.objective,
            ratings=Ratings(config.num_policies, config.matchup.elo_k) if facts.spec.seats > 1 else None,
            tasks=facts.spec.tasks,
            task_cap=facts.spec.task_cap,
            min_rounds=config.pbt.min_episodes,
        )
        self._pack_of = {m: i for i, pack in enumerate(facts.plan.packs) for m in pack.members}
        self._dispatch = Dispatch(self._population, self._pack_of, self._send)
        searches = config.searches
        self._turns = Slots(
            facts.plan,
            self._population,
            None if searches else config.slot_frames,
            None if searches else config.train_for_frames,
        )
        self._journal = Journal(folder / "journal.jsonl")
        self._journal.start(to_json(config), config.seed, facts.spec)
        self._journal.initial(initial)
        for pack, change in self._turns.start():
            self._journal_slot(pack, change)
        self._meetings = RunMatchups(facts, self._turns, self._population.ratings)
        self._screen = Terminal([*describe_plan(facts), f"run folder: {folder}"])
        self._board = TensorBoard(
            folder,
            config.num_policies,
            config_json=json.dumps(to_json(config), indent=2),
            warn=self._screen.event,
            figures=config.figures,
        )
        self._initial = initial
        self._fleet: Fleet | None = None
        self._pace = Throughput()
        self._learners_ready = 0
        self._replacement_milliseconds: list[float] = []
        self._restarts = 0
        self._errors: dict[str, int] = {}
        """How often an actor was restarted for the same reason."""
        self._signal: int | None = None
        self._environment_seconds = 0.0
        self._next_view = 0.0
        self._next_progress = time.monotonic() + PROGRESS_SECONDS
        self._saved: set[Path] = set()
        """Files of weights that were written, or could not be."""
        self._next_save_frames = config.save_every_frames

    # -- the run --------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Train until a budget is spent, a signal comes or something fails; leave nothing behind."""
        previous = {
            s: signal.signal(s, self._note_signal) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        self._screen.start()
        failure: Exception | None = None
        ended = "failed"
        try:
            config, facts = self._config, self._facts
            kind = InlineFleet if config.mode == "serial" else ProcessFleet
            matchups = self._meetings.arrange()
            self._fleet = kind(config, facts.options, facts.spec, facts.plan, self._initial, matchups)
            for pack, row_UES in enumerate(matchups):
                self._journal_matchup(pack, 1, row_UES)
            ended = self._loop(self._fleet)
            self._save_best(self._fleet)
        except (RunFailed, EnvSetupError) as error:
            failure = error
        finally:
            if self._fleet is not None:
                self._fleet.close()
            self._finish(ended)
            for number, handler in previous.items():
                signal.signal(number, handler)
        if failure is not None:
            raise failure
        return EXIT_OK if self._signal is None else 128 + self._signal

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
                self._show(fleet)
            if now >= self._next_progress:
                self._next_progress = now + PROGRESS_SECONDS
                self._journal_progress()

    def _why_end(self) -> str | None:
        if self._signal is not None:
            return f"interrupted by {signal.Signals(self._signal).name}"
        if 0 < self._config.train_for_seconds <= self._pace.training_seconds:
            return "seconds"
        if self._population.all_stopped or self._turns.stuck:
            return "all members are done"
        if not self._config.searches and self._population.least_frames >= self._config.train_for_frames:
            return "frames"
        return None

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number

    # -- events ---------------------------------------------------------------------------------------------

    def _handle(self, fleet: Fleet, event: Event) -> None:
        if event.kind == "learner_died":
            raise RunFailed(event.content)
        if event.kind != "message":
            self._replace_actor(fleet, event)
            return
        kind, *content = event.content
        if kind == "report":
            self._take_report(event.index, content[0])
        elif kind == "applied":
            self._take_applied(content[0])
        elif kind == "slot_changed":
            self._take_slot_changed(*content)
        elif kind == "exported":
            self._dispatch.exported(content[0])
        elif kind == "saved":
            self._saved.add(content[0])
        elif kind == "not_saved":
            self._saved.add(content[0])
            self._screen.event(f"{content[0]} could not be written: {content[1]}")
        else:
            assert kind == "ready", kind
            self._learners_ready += 1
            if self._learners_ready == len(self._facts.plan.packs):
                self._observe()  # before any frame: a search says how far its members may go

    def _replace_actor(self, fleet: Fleet, event: Event) -> None:
        """Restart an actor, unless it never got to work or it has happened too often."""
        if event.user_error:
            raise EnvSetupError(event.content)
        if (
            event.kind == "actor_died"
            and fleet.steps_answered(event.index) == 0
            and "killed" not in event.content
        ):
            raise EnvSetupError(
                f"{self._config.env} cannot be used: it raised when it was made or reset.\n{event.content}"
            )
        self._restarts += 1
        self._screen.event(f"actor {event.index} is restarted: {self._cause(event.content.strip())}")
        self._journal.write(
            "actor_restart",
            self._population.least_frames,
            actor=event.index,
            kind=event.kind,
            cause=event.content,
        )
        if self._restarts > self._config.max_actor_restarts:
            raise RunFailed(
                f"actors were restarted {self._restarts} times, more than --max-actor-restarts "
                f"{self._config.max_actor_restarts}; the last one:\n{event.content}"
            )
        fleet.restart_actor(event.index)

    def _cause(self, error: str) -> str:
        """An error of several lines whole the first time, by its last line later."""
        lines = error.splitlines()
        times = self._errors[error] = self._errors.get(error, 0) + 1
        return error if times == 1 or len(lines) < 2 else f"the same error again ({times} times): {lines[-1]}"

    def _take_report(self, pack: int, report: LearnerReport) -> None:
        self._population.take(str(pack), report)
        self._pace.note(self._population.frames, report.stage_seconds)
        if not self._dispatch.busy:
            self._observe()
            self._turns.note_report(pack)
        if 0 < self._next_save_frames <= self._population.least_frames:
            self._save_snapshot()

    # -- decisions ------------------------------------------------------------------------------------------

    def _send(self, pack: int, message: tuple[Any, ...]) -> None:
        assert self._fleet is not None
        self._fleet.send(pack, message)

    def _observe(self) -> None:
        """Ask the controller, have its decisions applied, then give the slots."""
        seen = self._population.report()
        decisions = self._controller.observe(seen)
        if decisions:
            self._journal.round(seen, decisions)
            self._board.population_images()
            made = changes(decisions, self._population.generations)
            for decision, change in zip(decisions, made, strict=True):
                if change.stopped:
                    self._screen.event(f"member {decision.member} is stopped: {decision.reason}")
            remembered = self._controller.remembers()
            if self._population.ratings is not None:
                self._population.ratings.follow(made, remembered)
            self._dispatch.enact(made, remembered)
            self._meetings.due = True
        self._give_places()

    def _give_places(self) -> None:
        """Let slots change hands once all decisions are applied: who enters is then what it was decided to be."""
        if self._dispatch.busy or self._why_end() is not None:
            return
        for pack, change in self._turns.assign():
            self._send(pack, ("slot", change))
            self._journal_slot(pack, change)
            self._screen.event(slot_text(pack, change))
        self._meet_others()

    def _meet_others(self) -> None:
        """After a comparison whose decisions are all applied: new opponents."""
        if self._meetings.due and self._fleet is not None:
            for pack, row_UES in enumerate(self._meetings.again()):
                self._journal_matchup(pack, self._fleet.set_matchup(pack, row_UES), row_UES)

    def _take_applied(self, applied: Applied) -> None:
        pending = self._dispatch.applied(applied)
        waited = (time.perf_counter() - pending.decided) * 1000
        self._journal_applied(applied, decision_to_applied_milliseconds=waited)
        if applied.donor is not None:
            self._replacement_milliseconds.append(applied.milliseconds)
        self._screen.event(applied_text(applied))
        self._write_member(applied.member, pending.edit.values)
        self._give_places()

    def _take_slot_changed(self, _change: SlotChange, proof: Applied | None) -> None:
        if proof is not None:
            self._journal_applied(proof)

    def _journal_applied(self, applied: Applied, **times: float) -> None:
        self._journal.write("applied", self._population.least_frames, **asdict(applied), **times)

    def _journal_slot(self, pack: int, change: SlotChange) -> None:
        slots = {"pack": pack, "slot": change.slot, "leaves": change.leaves, "enters": change.enters}
        self._journal.write("slot", self._population.least_frames, **slots)

    def _journal_matchup(self, pack: int, version: int, row_UES: NDArray[np.int64]) -> None:
        plan = self._facts.plan.packs[pack]
        who = {"pack": pack, "version": version, "slots": self._turns.members_of(pack)}
        met = games_between(row_UES, plan.slots, plan.envs_per_policy)
        self._journal.write("matchup", self._population.least_frames, **who, meetings=met)

    def _write_member(self, member: int, values: Values) -> None:
        """`policy_00.json`: the member's present hypers and shaping, for people."""
        state = {
            "member": member,
            "generation": self._population.members[member].generation,
            "hypers": {k: v for k, v in values.items() if not k.startswith(SHAPING)},
            "shaping": {k.removeprefix(SHAPING): v for k, v in values.items() if k.startswith(SHAPING)},
        }
        try:
            (self._folder / f"policy_{member:02d}.json").write_text(json.dumps(state, indent=2) + "\n")
        except OSError as error:
            self._screen.event(f"policy_{member:02d}.json could not be written: {error}")

    # -- displays -------------------------------------------------------------------------------------------

    def _show(self, fleet: Fleet) -> None:
        view = self._view(fleet)
        self._screen.update(view)
        self._board.update(view)

    def _journal_progress(self) -> None:
        """How far every member is: curves and occupancy are drawn from it."""
        members = [
            {
                name: getattr(view, name)
                for name in ("member", "generation", "frames", "objective", "episodes")
            }
            for view in self._population.views()
        ]
        self._journal.write("progress", self._population.least_frames, members=members)

    def _view(self, fleet: Fleet | None) -> RunView:
        population, rate = self._population, self._pace.rate()
        spent = 0.0
        if fleet is not None:
            total = fleet.environment_seconds()
            spent, self._environment_seconds = total - self._environment_seconds, total
        return RunView(
            env_id=self._config.env,
            name=str(self._config.name),
            seconds=self._pace.seconds,
            frames=population.frames,
            steps=population.steps,
            frames_per_second=rate,
            seconds_left=self._seconds_left(rate),
            members=population.views(),
            replacements=self._dispatch.replacements,
            mutations=self._dispatch.mutations,
            actors=self._facts.plan.actors,
            actors_restarted=self._restarts,
            discarded_rollouts=population.discarded,
            lag_mean=population.lag_mean,
            lag_max=population.lag_max,
            stage_seconds=self._pace.take_stages(spent),
            seats=self._facts.spec.seats,
        )

    def _seconds_left(self, rate: float) -> float | None:
        left = []
        if rate > 0 and not self._config.searches:  # of a search nobody knows how much it will give up
            left.append(self._population.missing_frames(self._config.train_for_frames) / rate)
        if self._config.train_for_seconds > 0:
            left.append(max(0.0, self._config.train_for_seconds - self._pace.training_seconds))
        return min(left, default=None)

    # -- the end --------------------------------------------------------------------------------------------

    def _save(self, path: Callable[[int], Path]) -> tuple[int, Path]:
        """Have the best member's weights (member 0's before any episode) written; returns who it is and where to."""
        best = best_member(self._population.views()) or 0
        self._send(self._pack_of[best], ("save", best, path(best), self._population.members[best].values))
        return best, path(best)

    def _save_snapshot(self) -> None:
        """Keep the best member as it is now; nothing waits for it."""
        every, frames = self._config.save_every_frames, self._population.least_frames
        due = frames // every * every
        self._next_save_frames = due + every
        best, _ = self._save(lambda member: weights_path(self._folder, member, due))
        self._journal.write("snapshot", frames, member=best, at_frames=due)

    def _save_best(self, fleet: Fleet) -> None:
        """Have what was decided applied, and the best member's weights written."""
        best, path = self._save(lambda member: weights_path(self._folder, member))
        deadline = time.monotonic() + SAVE_SECONDS
        while (self._dispatch.busy or path not in self._saved) and time.monotonic() < deadline:
            for event in fleet.events(PATIENCE_SECONDS):
                if event.kind == "message" and event.content[0] == "report":
                    continue  # it may bring new decisions
                if event.kind in ("message", "learner_died"):
                    self._handle(fleet, event)
        if path not in self._saved:
            self._screen.event(f"the weights of member {best} were not saved within {SAVE_SECONDS:.0f} s")

    def _finish(self, ended: str) -> None:
        view = self._view(None)
        self._screen.stop()
        try:
            for member in self._population.members:
                self._write_member(member.id, member.values)
            write_summary(
                self._folder / "summary.json",
                view,
                frames_per_second_steady=self._pace.steady_rate(),
                replacement_milliseconds=self._replacement_milliseconds,
                ended=ended,
            )
            self._journal_progress()
            self._journal.write("end", self._population.least_frames, ended=ended)
            self._journal.close()
        except OSError as error:
            self._screen.event(f"the record of the run could not be finished: {error}")
        print_leaderboard(replace(view, stage_seconds=self._pace.last_stretch()), plain=self._screen.plain)
        self._board.update(view)
        # The last figures take seconds; a run that was interrupted or failed ends without them.
        self._board.close(patient=lambda: self._signal is None and ended != "failed")
