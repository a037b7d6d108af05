"""The supervisor: the parent of a run. It owns the processes, the controller, the record and the displays.

   +----------------------------- supervisor -----------------------------+
   |  events -> population -> controller -> edits -> journal, displays    |
   +---^-----------------------------------------------|-----------------+
       | reports, episodes, applied, deaths            | edits, export, save, stop
   +---|-----------------------------------------------v-----------------+
   |  learner a device: sampler (acting)  <-rollouts->  trainer (learning) |
   +---^-----------------------------------------------|-----------------+
       | one step a unit (mailbox)                     | actions (mailbox)
   +---|-----------------------------------------------v-----------------+
   |  actors: step environments                                           |
   +----------------------------------------------------------------------+

loop      consumes   events of the fleet: messages, deaths, hangs; signals
          produces   edits, one comparison at a time; views about once a second
          waits for  the next event, at most a tenth of a second
"""

from __future__ import annotations

import json
import signal
import time
from bisect import bisect_left
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pbt_rl.board import Board
from pbt_rl.checkpoint import weights_path
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import RunFailed
from pbt_rl.fleet import Event, Fleet, InlineFleet, ProcessFleet
from pbt_rl.journal import Journal
from pbt_rl.monitor import best_member
from pbt_rl.pbt.decisions import Continue, Decision, Mutate, Replace, Restart, Stop
from pbt_rl.pbt.hypers import SHAPING, Values
from pbt_rl.population import Population
from pbt_rl.reports import Applied, RunView
from pbt_rl.run import Facts, create_run_folder, describe_plan, to_json
from pbt_rl.screen import Screen, applied_text, print_leaderboard
from pbt_rl.summary import write_summary
from pbt_rl.topology import Machine
from pbt_rl.trainer import Edit

PATIENCE_SECONDS = 0.1
VIEW_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
SAVE_SECONDS = 30.0
RATE_WINDOW_SECONDS = 10.0
EXIT_OK, EXIT_FAILED = 0, 1


@dataclass
class _Pending:
    """An edit on its way to a learner."""

    edit: Edit
    decided: float
    """time.perf_counter() when the controller had decided."""
    needs_export: int | None
    """A donor on another pack whose state must be fetched first."""


def train(config: Config) -> int:
    """Train a population; returns the exit code. Raises ConfigError or EnvSetupError before anything started."""
    facts = Facts.find(config, Machine.here())
    facts.controller().initial(config.num_policies)  # a wrong --pbt.tune shows before a folder is made
    config, folder = create_run_folder(config)
    facts = Facts(config, facts.options, facts.spec, facts.plan, facts.table)
    return Supervisor(facts, folder).run()


class Supervisor:
    """One run."""

    def __init__(self, facts: Facts, folder: Path) -> None:
        config = facts.config
        self._facts, self._config, self._folder = facts, config, folder
        self._controller = facts.controller()
        initial = self._controller.initial(config.num_policies)
        self._population = Population(initial, config.pbt.objective_episodes, facts.spec.frame_skip)
        self._pack_of = {m: i for i, pack in enumerate(facts.plan.packs) for m in pack.members}
        self._journal = Journal(folder / "journal.jsonl")
        self._journal.start(to_json(config), config.seed, facts.spec)
        self._journal.initial(initial)
        for number, pack in enumerate(facts.plan.packs):
            for place, member in enumerate(pack.members):
                self._journal.write("seat", 0, pack=number, place=place, leaves=None, enters=member)
        self._screen = Screen([*describe_plan(facts), f"run folder: {folder}"])
        self._board = Board(
            folder,
            config.num_policies,
            config_json=json.dumps(to_json(config), indent=2),
            warn=self._screen.event,
        )
        self._initial = initial
        self._fleet: Fleet | None = None
        self._queue: deque[_Pending] = deque()
        self._sent: dict[int, _Pending] = {}
        self._replacement_milliseconds: list[float] = []
        self._replacements = self._mutations = self._restarts = 0
        self._signal: int | None = None
        self._began = time.monotonic()
        self._history: list[tuple[float, int]] = [(0.0, 0)]
        """(seconds, frames of the population) at every report."""
        self._stages: dict[str, float] = {}
        self._environment_seconds = 0.0
        self._next_view = 0.0
        self._next_progress = time.monotonic() + PROGRESS_SECONDS
        self._saved: set[int] = set()

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
            self._fleet = kind(config, facts.options, facts.spec, facts.plan, self._initial)
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
        if self._population.least_frames >= self._config.train_for_frames:
            return "frames"
        if 0 < self._config.train_for_seconds <= time.monotonic() - self._began:
            return "seconds"
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
            self._take_report(fleet, event.index, content[0])
        elif kind == "applied":
            self._take_applied(fleet, content[0])
        elif kind == "exported":
            self._take_exported(fleet, content[0])
        elif kind == "saved":
            self._saved.add(content[0])
        elif kind == "not_saved":
            self._saved.add(content[0])
            self._screen.event(f"the weights of member {content[0]} could not be saved: {content[1]}")
        else:
            assert kind == "ready", kind

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
        self._screen.event(f"actor {event.index} is restarted: {event.content.strip()}")
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

    def _take_report(self, fleet: Fleet, pack: int, report: Any) -> None:
        self._population.take(str(pack), report)
        self._history.append((time.monotonic() - self._began, self._population.frames))
        for stage, seconds in report.stage_seconds.items():
            self._stages[stage] = self._stages.get(stage, 0.0) + seconds
        if self._queue or self._sent:
            return
        seen = self._population.report()
        decisions = self._controller.observe(seen)
        if decisions:
            self._journal.round(seen, decisions)
            decided = time.perf_counter()
            for decision in decisions:
                self._enact(decision, decided)
            self._send_next(fleet)

    # -- decisions ------------------------------------------------------------------------------------------

    def _enact(self, decision: Decision, decided: float) -> None:
        """Turn a decision into an edit and count it as made; the member's window starts empty at once."""
        if isinstance(decision, Continue):
            return
        member = self._population.members[decision.member]
        if isinstance(decision, Stop):
            member.stopped = True
            return
        member.change(decision.values)
        donor = decision.donor if isinstance(decision, Replace) else None
        weights: Any = "keep"
        needs_export = None
        if isinstance(decision, Replace) and decision.copy != "hypers":
            near = self._pack_of[decision.donor] == self._pack_of[decision.member]
            weights = "copy" if near else "import"
            needs_export = None if near else decision.donor
        elif isinstance(decision, Restart):
            weights = "fresh"
        edit = Edit(decision.member, member.generation, weights, donor, decision.values)
        self._queue.append(_Pending(edit, decided, needs_export))
        self._replacements += isinstance(decision, Replace)
        self._mutations += isinstance(decision, Mutate)

    def _send_next(self, fleet: Fleet) -> None:
        """Send edits on; one that crosses packs has the exchange memory to itself until it is applied."""
        while self._queue and not any(p.needs_export is not None for p in self._sent.values()):
            pending = self._queue.popleft()
            self._sent[pending.edit.member] = pending
            if pending.needs_export is not None:
                fleet.send(self._pack_of[pending.needs_export], ("export", pending.needs_export))
            else:
                fleet.send(self._pack_of[pending.edit.member], ("edit", pending.edit))

    def _take_exported(self, fleet: Fleet, donor: int) -> None:
        for pending in self._sent.values():
            if pending.needs_export == donor:
                fleet.send(self._pack_of[pending.edit.member], ("edit", pending.edit))

    def _take_applied(self, fleet: Fleet, applied: Applied) -> None:
        pending = self._sent.pop(applied.member)
        waited = (time.perf_counter() - pending.decided) * 1000
        self._journal.write(
            "applied",
            self._population.least_frames,
            **asdict(applied),
            decision_to_applied_milliseconds=waited,
        )
        if applied.donor is not None:
            self._replacement_milliseconds.append(applied.milliseconds)
        self._screen.event(applied_text(applied))
        self._write_member(applied.member, pending.edit.values)
        self._send_next(fleet)

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
        population, seconds = self._population, time.monotonic() - self._began
        rate = self._rate_since(self._history[-1][0] - RATE_WINDOW_SECONDS)
        stages, self._stages = self._stages, {}
        if fleet is not None:
            total = fleet.environment_seconds()
            stages["environment"] = total - self._environment_seconds
            self._environment_seconds = total
        return RunView(
            env_id=self._config.env,
            name=str(self._config.name),
            seconds=seconds,
            frames=population.frames,
            steps=population.steps,
            frames_per_second=rate,
            seconds_left=self._seconds_left(seconds, rate),
            members=population.views(),
            replacements=self._replacements,
            mutations=self._mutations,
            actors=self._facts.plan.actors,
            actors_restarted=self._restarts,
            discarded_rollouts=population.discarded,
            lag_mean=population.lag_mean,
            lag_max=population.lag_max,
            stage_seconds=stages,
        )

    def _seconds_left(self, seconds: float, rate: float) -> float | None:
        left = []
        if rate > 0:
            missing = self._config.train_for_frames - self._population.least_frames
            left.append(max(0.0, missing * len(self._population.members) / rate))
        if self._config.train_for_seconds > 0:
            left.append(max(0.0, self._config.train_for_seconds - seconds))
        return min(left, default=None)

    def _rate_since(self, start_seconds: float) -> float:
        """Frames/s from the first report at or after `start_seconds` to the last one."""
        index = bisect_left(self._history, start_seconds, key=lambda point: point[0])
        first = self._history[min(index, len(self._history) - 1)]
        last = self._history[-1]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0

    def _steady_rate(self) -> float:
        """Frames/s over the last three quarters of the time in which frames came."""
        start = next((seconds for seconds, frames in self._history if frames > 0), 0.0)
        return self._rate_since(start + (self._history[-1][0] - start) / 4)

    # -- the end --------------------------------------------------------------------------------------------

    def _save_best(self, fleet: Fleet) -> None:
        """Have what was decided applied, and the best member's weights written (member 0's before any episode)."""
        best = best_member(self._population.views()) or 0
        values = self._population.members[best].values
        fleet.send(self._pack_of[best], ("save", best, weights_path(self._folder, best), values))
        deadline = time.monotonic() + SAVE_SECONDS
        while (self._sent or best not in self._saved) and time.monotonic() < deadline:
            for event in fleet.events(PATIENCE_SECONDS):
                if event.kind == "message" and event.content[0] == "report":
                    continue  # it may bring new decisions
                if event.kind in ("message", "learner_died"):
                    self._handle(fleet, event)
        if best not in self._saved:
            self._screen.event(f"the weights of member {best} were not saved within {SAVE_SECONDS:.0f} s")

    def _finish(self, ended: str) -> None:
        view = self._view(None)
        self._screen.stop()
        try:
            self._board.update(view)
            self._board.close()
            for member in self._population.members:
                self._write_member(member.id, member.values)
            write_summary(
                self._folder / "summary.json",
                view,
                frames_per_second_steady=self._steady_rate(),
                replacement_milliseconds=self._replacement_milliseconds,
                ended=ended,
            )
            self._journal_progress()
            self._journal.write("end", self._population.least_frames, ended=ended)
            self._journal.close()
        except OSError as error:
            self._screen.event(f"the record of the run could not be finished: {error}")
        print_leaderboard(view, plain=self._screen.plain)
