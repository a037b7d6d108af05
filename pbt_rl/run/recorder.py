"""Recorder of a run: journal, run folder, TensorBoard, trackers, terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from pbt_rl.actors.messages import Acknowledgement
from pbt_rl.controllers.changes import Change, changes
from pbt_rl.controllers.decisions import Decision, PopulationReport
from pbt_rl.controllers.hypers import Values
from pbt_rl.controllers.objectives import mean
from pbt_rl.controllers.ready import since_comparison
from pbt_rl.controllers.records import converted
from pbt_rl.display.ranking import stalled
from pbt_rl.display.scalars import summary
from pbt_rl.display.tensorboard import TensorBoard
from pbt_rl.display.terminal import Terminal, evaluation_text, next_commands, print_leaderboard
from pbt_rl.display.trackers import outlets
from pbt_rl.display.view import Evaluation, GraphWarnings, RunView
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.options.values import displayed
from pbt_rl.play.evaluation.evaluations import recorded_late
from pbt_rl.population.population import Population
from pbt_rl.population.slot_assignment import Swap
from pbt_rl.record.append import Outage, reason
from pbt_rl.record.checkpoint_writer import Written
from pbt_rl.record.folder import RunFolder, to_json
from pbt_rl.record.journal import Journal, cut_journal
from pbt_rl.run.callbacks import Callbacks
from pbt_rl.run.continued import Continued
from pbt_rl.run.fleet import ActorFailed, LearnerLost
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.shown import compares, describe_plan, usual_wait
from pbt_rl.run.views import WaitingComparison, verdict
from pbt_rl.run.warm_start import WarmStart

MOST_WARNINGS = 100
PROGRESS_FIELDS = (
    "member", "generation", "frames", "objective", "episodes", "complete", "early", "ended", "environments"
)  # fmt: skip
RUN_FIELDS = ("training_seconds", "seconds_left", "frames_per_second", "lag_mean", "lag_max")
"""Fields of `RunView` in progress events of the journal. PROGRESS_FIELDS: fields of `MemberView` in these events."""


class Recorder:
    """Writer of the records (except checkpoints) and displays of a run. Not thread-safe.

    callbacks: user callbacks, which receive views, decisions and checkpoints. resumes: True for a resumed run.
    """

    def __init__(
        self,
        resolved: ResolvedRun,
        folder: RunFolder,
        population: Population,
        callbacks: Callbacks,
        *,
        resumes: bool,
    ) -> None:
        self._resolved, self._folder, self._population = resolved, folder, population
        self._callbacks = callbacks
        self._warnings: list[str] = []
        """Warnings so far, without repetitions."""
        self._terminal = Terminal([*describe_plan(resolved, begun=resumes), f"run folder: {folder.path}"])
        self._trackers: outlets.Trackers
        self._journal: Journal
        self._tensorboard: TensorBoard
        self._saved = self._open = False
        self._outage = Outage(f"small files of {folder.path}", self._terminal.event)
        self._shown: RunView | None = None
        self._decided: dict[int, tuple[Change, Values, dict[int, float | None]]] = {}
        """Member -> decision of the last comparison, values before this decision, and scores of all members."""
        self._evaluation: Evaluation | None = None
        self._waiting = WaitingComparison(usual_wait(resolved))
        self._view_checks: list[Callable[[RunView], list[str]]] = [self._waiting, GraphWarnings()]
        """Functions that return warnings about a view."""
        self._unwritten: set[int] = set()
        """Members whose values file is outdated."""
        self._warned_of_broken = False

    def start(
        self, continued: Continued | None = None, first: WarmStart | None = None, seconds: float = 0.0
    ) -> None:
        """Start or continue the records of a run, and take over the terminal.

        continued: saved state of a resumed run. The journal is truncated to its length at the checkpoint.
        first: warm start to record. seconds: run time at the checkpoint, or 0 for a new run.
        Raises OSError if a file cannot be written. Raises ConfigError if the journal of a resumed run does not fit, or
        if a tracker cannot be started.
        """
        config, folder = self._resolved.config, self._folder
        self._saved = continued is not None
        late: list[Evaluation] = []
        if continued is not None:
            position = continued.record["journal"]
            late = recorded_late(folder.journal, position, continued.checkpoint.frames)
            cut_journal(folder.journal, position)
            folder.write_config(config)
            folder.summary.unlink(missing_ok=True)
            known = continued.record["evaluation"]
            self._evaluation = converted(known, Evaluation | None, "the evaluation that was saved")
        self._trackers = outlets.start(config, folder, seconds, self.warn)
        self._journal = Journal(folder.journal, warn=self._terminal.event)
        population = self._population
        self._tensorboard = TensorBoard(
            folder,
            config.members,
            config_json=json.dumps(to_json(config), indent=2),
            warn=self.warn,
            figures=config.figures,
            resumed=None
            if continued is None
            else [population.frames, *(m.frames for m in population.members)],
        )
        if continued is None:
            self._journal.start(to_json(config), config.seed, self._resolved.spec)
            self._journal.initial([member.initial for member in self._population.members])
        self._terminal.start()
        self._open = True
        for line in self._terminal.heading:
            if line.startswith("warning:"):
                self._keep(line)
        if continued is not None:
            self._note_resume(continued)
        elif first is not None:
            self.write("init", **first.record())
            for line in first.described():
                self.note(line)
        for evaluation in late:
            self.evaluated(evaluation, again=True)

    def _note_resume(self, continued: Continued) -> None:
        """Record the resume, with the options and values that have changed."""
        config, given = self._resolved.config, continued.given(self._resolved.spec.shaping)
        anew = not continued.vector_envs(self._resolved.plan)
        self.note(f"{continued.found()}{'; environments start new episodes' if anew else ''}")
        self.write(
            "resume", config=to_json(config), changed=continued.changed, new_episodes=anew, values=given
        )
        known = table(config)
        for option, (before, now) in continued.changed.items():
            if option != "shaping":
                metadata = known[option].metadata
                was = "not given" if before is None else displayed(metadata, before)
                self.note(f"--{option} is now {displayed(metadata, now)} (before: {was})")
        for name, value in given.items():
            goes_on = self._resolved.tuned[name].tuned and compares(config)
            more = "; PBT continues to tune it (--pbt.tune)" * goes_on
            self.note(f"{name} is now {value:g} for each member{more}")

    def positions(self) -> dict[str, Any]:
        """Return data for a checkpoint, as JSON types: size of the journal in bytes, config, newest evaluation.

        Raises OSError if the journal cannot be flushed.
        """
        self._journal.sync()
        return {
            "journal": self._journal.position(),
            "config": to_json(self._resolved.config),
            "evaluation": None if self._evaluation is None else asdict(self._evaluation),
        }

    def note(self, text: str) -> None:
        """Print a line in the terminal."""
        self._terminal.event(text)

    def warn(self, text: str) -> None:
        """Print a warning. Add the first MOST_WARNINGS different warnings to the journal and the summary."""
        self.note(text)
        self._keep(text)

    def _keep(self, text: str) -> None:
        if text in self._warnings or len(self._warnings) == MOST_WARNINGS or not self._open:
            return
        self._warnings.append(text)
        self.write("remark", text=text)

    def write(self, event: str, **content: object) -> None:
        """Write an event to the journal, with the population clock.

        event: kind of the event, such as "checkpoint". content: all other fields of the event.
        """
        self._journal.write(event, self._population.least_frames, **content)

    # -- what happens -----------------------------------------------------------------------------------------

    def decided(self, report: PopulationReport, decisions: list[Decision]) -> None:
        """Record a comparison: the report to the controller, and the controller's decisions."""
        incomplete = [member.id for member in self._population.members if not member.complete]
        self._waiting.note_decisions()
        self._journal.round(report, decisions, incomplete, self._resolved.plan.packs[0].episodes_of_score)
        made = changes(decisions, self._population.generations)
        compared = map(since_comparison, report.members)
        scores = {m.member: mean(m.objectives) if m.objectives else None for m in compared}
        self._decided = {
            change.member: (change, dict(self._population.members[change.member].values), scores)
            for change in made
        }
        self._tensorboard.request_figures()
        self._warn_of_broken([m.member for m in report.members if m.broken])
        self._callbacks.decided(report, decisions)

    def applied(self, ack: Acknowledgement, milliseconds: Mapping[str, float]) -> None:
        """Record that a decision was applied.

        milliseconds: time from the decision to each stage: `sent`, the stages of `Acknowledgement.clock`, `answered`.
        """
        waited = {"decision_to_applied_milliseconds": milliseconds["answered"]}
        self.write("applied", **fields_of(ack), **waited, milliseconds_until=milliseconds)
        if ack.member in self._decided:
            self._terminal.decision(*self._decided[ack.member])
        self._unwritten.add(ack.member)
        self._write_small_files()

    def slot_held(self, pack: int, swap: Swap) -> None:
        """Record a new slot assignment in the journal."""
        self.write("slot", pack=pack, slot=swap.slot, leaves=swap.leaves, enters=swap.enters)

    def matchup(
        self,
        pack: int,
        matchup_version: int,
        pair_counts: list[list[int]],
        slot_members: Sequence[int | None],
    ) -> None:
        """Record new matchups of a pack. matchup_version: 1 for the first matchups, then increasing.

        pair_counts: result of `matchmaking.pair_counts`, a number for each pair of slots.
        slot_members: member of each slot. None: an empty slot.
        """
        self.write(
            "matchup", pack=pack, matchup_version=matchup_version, slots=slot_members, games=pair_counts
        )

    def actor_restarted(self, failed: ActorFailed, cause: str) -> None:
        """Record the restart of an actor. cause: short text for the terminal."""
        self.note(f"restarting actor {failed.actor}: {cause}")
        kind = "actor_hung" if failed.hung else "actor_died"
        self.write("actor_restart", actor=failed.actor, kind=kind, cause=failed.text)

    def pack_lost(self, lost: LearnerLost, members: list[dict[str, Any]]) -> None:
        """Record the replacement of a learner. members: result of `Dispatch.lost`, one entry per affected member."""
        ids, lost_frames = ", ".join(str(m["member"]) for m in members), {m["frames_lost"] for m in members}
        frames = (
            " to ".join(f"{n:,}" for n in sorted({min(lost_frames), max(lost_frames)})) if members else ""
        )
        what = f"members {ids} lose {frames} frames of training each" if members else "it had no members"
        self.note(f"{lost.text}; replacing it: {what}")
        self.write("pack_lost", pack=lost.pack, kind=lost.kind, cause=lost.text, members=members)
        # Pending decisions about these members get no acknowledgement.
        self._unwritten.update(m["member"] for m in members)

    def checkpoint(self, written: Written) -> None:
        """Record a checkpoint."""
        self._saved = True
        facts = {name: getattr(written, name) for name in ("number", "members", "bytes", "seconds", "kept")}
        self.write("checkpoint", at_frames=written.frames, **facts)
        self._callbacks.saved(written)

    @property
    def evaluated_frames(self) -> int:
        """Population clock at the newest evaluation, in frames. 0 without an evaluation."""
        return 0 if self._evaluation is None else self._evaluation.frames

    def evaluated(self, evaluation: Evaluation, clip: bytes = b"", *, again: bool = False) -> None:
        """Record an evaluation during training. clip: GIF of the first episode, or empty.

        again: True if the evaluation was already recorded before a resume. TensorBoard already contains it.
        """
        self._evaluation = evaluation
        facts = asdict(evaluation)
        self.write("evaluation", at_frames=facts.pop("frames"), **facts)
        if not again:
            self._tensorboard.evaluated(evaluation, clip)
        self.note(evaluation_text(evaluation))

    def progress(self) -> None:
        """Record the progress of each member in the journal. `pbt-rl report` draws its curves from these records."""
        views = self._population.views()
        members = [
            {name: getattr(v, name) for name in PROGRESS_FIELDS}
            | {name: v.stats[name] for name in ("raw_return", "length_steps") if name in v.stats}
            for v in views
        ]
        view = self._shown
        times = {} if view is None else {name: getattr(view, name) for name in RUN_FIELDS}
        busy = {} if view is None else view.busy_threads
        why = {} if view is None or not stalled(view) else {"stalled": stalled(view)}
        self.write("progress", members=members, busy_threads=busy, **times, **why)
        self._write_small_files()

    def show(self, view: RunView) -> None:
        """Update all displays."""
        view = self._as_shown(view)
        self._shown = view
        self._terminal.update(view)
        self._tensorboard.update(view)
        self._trackers.update(view)
        self._warn_about(view)

    def _as_shown(self, view: RunView) -> RunView:
        view = replace(view, evaluation=self._evaluation)
        return self._callbacks.report(view)

    def _warn_of_broken(self, members: Sequence[int]) -> None:
        """Warn about members that cannot learn, at most once."""
        if members and not self._warned_of_broken:
            self._warned_of_broken = True
            self.warn(
                f"WARNING: member {members[0]} cannot learn: none of its last optimiser steps had a finite gradient. "
                "If this happens to many members, look for NaN and infinity in observations, rewards and custom "
                "modules, or lower the learning rate"
            )

    def _warn_about(self, view: RunView) -> None:
        self._warn_of_broken([m.id for m in self._population.members if m.broken])
        for found in self._view_checks:
            for text in found(view):
                self.warn(text)

    def _write_small_files(self, *, last: bool = False) -> None:
        """Write the values of changed members to files. last: True to write even if writes have just failed."""
        if not (last or self._outage.due()):
            return
        try:
            while self._unwritten:
                member = self._population.members[next(iter(self._unwritten))]
                self._folder.write_values(member.id, member.generation, member.values)
                self._unwritten.discard(member.id)
        except OSError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()

    # -- the end ----------------------------------------------------------------------------------------------

    def finish(
        self,
        view: RunView,
        *,
        ended: str,
        frames_per_second_steady: float,
        replacement_milliseconds: Sequence[float],
        may_wait: Callable[[], bool],
        saved_at_frames: int | None,
    ) -> None:
        """Write the result, and close all records and displays.

        ended: reason for the end. replacement_milliseconds: duration of each of the latest replacements.
        may_wait: returns True if this method may wait some seconds for figures and trackers.
        saved_at_frames: frames of the checkpoint at the end. None without such a checkpoint.
        """
        self._terminal.stop()
        view = self._as_shown(view)
        self._warn_about(view)
        self._unwritten.update(member.id for member in self._population.members)
        self._write_small_files(last=True)
        result = summary(
            view,
            frames_per_second_steady=frames_per_second_steady,
            replacement_milliseconds=replacement_milliseconds,
            ended=ended,
            warnings=self._warnings,
            saved_at_frames=saved_at_frames,
        )
        try:
            self._folder.write_summary(result)
        except OSError as error:
            self.note(f"{self._folder.summary} could not be written: {reason(error)}")
        self._shown = replace(view, seconds_left=None)
        self.progress()
        judged = [asdict(m.final) | {"member": m.member} for m in view.members if m.final is not None]
        if judged:
            self.write("final", members=judged, random_play=view.random_policy)
        self.write("end", ended=ended)
        self._journal.close()
        self._open = False
        self._print_result(replace(view, seconds_left=None, comparison_in_seconds=None), ended)
        self._trackers.update(view)
        self._tensorboard.update(view)
        self._tensorboard.close(may_wait=may_wait)
        # Close trackers last, because a tracker may read the files of TensorBoard.
        self._trackers.finish(ended, may_wait=may_wait())

    def _print_result(self, view: RunView, ended: str) -> None:
        """Print the leaderboard, a summary of the result, and the next commands."""
        if view.frames or ended != "failed":
            print_leaderboard(view, plain=self._terminal.plain)
        said, uncompared = "", ""
        if view.frames:
            with suppress(ConfigError):  # a full disk may have truncated the journal
                said, uncompared = verdict(self._resolved, view, self._folder.path)
        commands = next_commands(
            self._folder.path, self._resolved.config, ended, trained=view.frames > 0, saved=self._saved
        )
        for line in filter(None, (said, *commands, "" if ended == "failed" else uncompared)):
            self.note(line)


def fields_of(ack: Acknowledgement) -> dict[str, Any]:
    """Return the fields of an acknowledgement for the journal. The field `clock` is left out."""
    return {name: value for name, value in asdict(ack).items() if name != "clock"}
