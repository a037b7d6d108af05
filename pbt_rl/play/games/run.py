"""Evaluations beside training, and the final games.

Every so many frames the best member plays fresh games, in a process of its own:

    due -> the run is saved -> the best member plays from that checkpoint -> journal, TensorBoard, trackers

What the process does, and whether it dies, changes nothing in the run: at worst the curve lacks a point. One plays at a
time; an evaluation that is due meanwhile begins when it has ended.

At the end, before the best member is named, the first of the ranking play fresh episodes. The objective of a member is
the mean of its last episodes in training: the highest of many such means is high by luck too. Fresh episodes, in the
environment as `pbt-rl eval` makes it, tell more. Each member plays in a process of its own, from the checkpoint of the
run's end; nothing here changes a member or a decision.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO

from pbt_rl.config import Config
from pbt_rl.controllers.events import Evaluation as Recorded
from pbt_rl.controllers.events import decode_event
from pbt_rl.controllers.objectives import mean, spread
from pbt_rl.display.ranking import known_objective
from pbt_rl.display.view import Evaluation, FinalGames, MemberView, RunView
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import require
from pbt_rl.plan import Plan
from pbt_rl.play.film import check_clips
from pbt_rl.play.games.episodes import JUDGE, Evaluated, EvaluationSetup, FinalRound, FinalSetup
from pbt_rl.processes.child import Child
from pbt_rl.record.append import reason
from pbt_rl.record.checkpoints import Checkpoint

PRIORITY = 5
"""Training comes first (`nice`): where all cores are busy, a quarter of one is left for the games."""
LIMIT_SECONDS = 3600.0
"""An evaluation that takes longer is given up."""
LAST_SECONDS = 30.0
"""The end of a run waits at most this long for the games that are being played."""
POLL_SECONDS = 0.05
Record = Callable[[Evaluation, bytes], None]
"""Takes a result, and the clip of its first episode as a GIF; empty without one."""


@dataclass(frozen=True)
class _Playing:
    """One evaluation in progress. what: its result, but for the scores."""

    child: Child[None, Evaluated]
    what: Evaluation
    began: float
    clip: IO[bytes] | None


def check(config: Config, spec: EnvSpec, _plan: Plan) -> None:
    """Check that games beside training mean something, and that they can be filmed. Raises ConfigError."""
    require(
        not config.evaluate_every_frames or spec.seats == 1,
        "evaluate-every-frames",
        config.evaluate_every_frames,
        f"a score of {config.env} means little without its opponents: leave it out, and compare members by "
        "`pbt-rl eval --against`",
    )
    if config.evaluate_video:
        check_clips(config)


def recorded_late(journal: Path, position: int, frames: int) -> list[Evaluation]:
    """Return the evaluations that stand behind a position of a journal, of checkpoints up to these frames.

    They had begun before the checkpoint that noted the position, and hold for a run that goes on from there.
    """
    found: list[Evaluation] = []
    if not journal.exists():  # which is said where it is continued
        return found
    with journal.open("rb") as file:
        file.seek(position)
        for line in file:  # not all at once: a run that was not saved for days has written much since
            try:
                event = decode_event(line, 0)
            except ValueError:  # torn, as the process was killed while it wrote, or damaged
                continue
            if isinstance(event, Recorded) and event.at_frames <= frames:
                found.append(
                    Evaluation(
                        event.at_frames,
                        event.all_frames,
                        event.member,
                        event.generation,
                        event.mean,
                        event.spread,
                        event.episodes,
                        event.seconds,
                    )
                )
    return found


class Evaluations:
    """Has the best member play while the run goes on. Use it from one thread.

    logs: folder for what is printed. evaluated_frames: returns the clock of the newest result that is recorded. note:
    is told what goes wrong, once.
    """

    def __init__(
        self,
        config: Config,
        logs: Path | None,
        evaluated_frames: Callable[[], int],
        record: Record,
        note: Callable[[str], None],
    ) -> None:
        self._config, self._logs, self._record, self._note = config, logs, record, note
        self._every, self._films = config.evaluate_every_frames, config.evaluate_video
        self._evaluated_frames = evaluated_frames
        self._taken_frames = 0
        self._playing: _Playing | None = None
        self._said = ""

    def due(self, frames: int) -> bool:
        """Whether a checkpoint is wanted for an evaluation. frames: the population's clock."""
        every, before = self._every, max(self._taken_frames, self._evaluated_frames())
        return every > 0 and self._playing is None and frames // every > before // every

    def take(self, frames: int) -> bool:
        """Return whether one is due; then the next one is not due before the next multiple of the option."""
        is_due = self.due(frames)
        if is_due:
            self._taken_frames = frames
        return is_due

    def begin_games(self, checkpoint: Checkpoint, member: int | None, all_frames: int) -> None:
        """Let a member of a checkpoint play; nobody if no member has an objective yet.

        all_frames: of the whole population at the checkpoint.
        """
        generations = {saved.member: saved.generation for saved in checkpoint.members()}
        if member is None or member not in generations:
            return
        what = Evaluation(checkpoint.frames, all_frames, member, generations[member])
        clip = None
        try:
            if self._films:
                clip = os.fdopen(os.memfd_create("pbt_rl-clip"), "w+b")
            descriptor = -1 if clip is None else clip.fileno()
            setup = EvaluationSetup(self._config, checkpoint, member, PRIORITY, descriptor)
            log = None if self._logs is None else self._logs / "evaluation.log"
            fds = [] if clip is None else [descriptor]
            child: Child[None, Evaluated] = Child(JUDGE, f"evaluation of member {member}", setup, fds, log)
        except OSError as error:
            if clip is not None:
                clip.close()
            self._failed(reason(error))
            return
        self._playing = _Playing(child, what, time.monotonic(), clip)

    def step(self) -> None:
        """Record the result of an evaluation that has ended."""
        playing = self._playing
        if playing is None:
            return
        ended = playing.child.exit_code() is not None  # asked first: what it has sent before is read below
        late = time.monotonic() - playing.began > LIMIT_SECONDS
        if not (ended or late):
            return
        results = list(playing.child.messages())
        clip = b""
        if results and playing.clip is not None:
            playing.clip.seek(0)
            clip = playing.clip.read()
        why = f"it took over {LIMIT_SECONDS:.0f} s" if not ended else ""
        if not (results or why):
            why = playing.child.ending().text.strip().partition("\n")[0]
        self._release()
        if results:
            self._said = ""
            self._record(replace(playing.what, **vars(results[-1])), clip)
            return
        self._failed(why)
        if self._films and playing.child.failure is not None:
            self._films = False
            self._note("the next evaluations are not filmed")

    def finish(self, patient: Callable[[], bool]) -> None:
        """Wait for the games that are being played while `patient`, half a minute at most, and end them."""
        deadline = time.monotonic() + LAST_SECONDS
        while self._playing is not None and patient() and time.monotonic() < deadline:
            self.step()
            time.sleep(POLL_SECONDS)
        if self._playing is not None:
            frames = self._playing.what.frames
            self._release()
            self._note(f"the evaluation at {frames:,} frames had not ended with the run; it is given up")

    def judged(
        self,
        view: RunView,
        spec: EnvSpec,
        checkpoint: Checkpoint,
        trained_seconds: float,
        stop: Callable[[], bool],
    ) -> RunView:
        """Return the view of the end with final games, if there are to be any."""
        seconds = final_seconds(self._config, spec, trained_seconds)
        members = candidates(view.members, checkpoint, self._config)
        if not (seconds and members):
            return view
        config, logs = self._config, self._logs
        number = config.final_episodes or EPISODES
        chance = _final_child("random play", FinalSetup(config, checkpoint, None, number), logs)
        try:
            played = play_final_games(config, checkpoint, members, seconds, logs, stop, self._note)
            wait([chance.sentinel], RANDOM_SECONDS if played and not stop() else 0.0)
            drawn = [score for message in chance.messages() for score in message.objectives]
        finally:
            chance.end(0.0)
        finals = [replace(m, final=played.get(m.member)) for m in view.members]
        return replace(view, members=finals, random_play=mean(drawn) if played and drawn else None)

    def _release(self) -> None:
        playing, self._playing = self._playing, None
        assert playing is not None
        playing.child.end(0.0)
        if playing.clip is not None:
            playing.clip.close()

    def _failed(self, why: str) -> None:
        """Say what went wrong, unless it is what went wrong before."""
        if why != self._said:
            self._said = why
            self._note(f"an evaluation failed: {why}; training goes on")


CANDIDATES = 4
"""So many of the ranking play, and at most so many at the same time."""
EPISODES = 20
"""If the user says nothing."""
SHARE = 0.1
"""Of the time that the run has trained, at most; so long may they take if the user says nothing."""
MOST_SECONDS = 60.0
"""So long is the first round of each member waited for, too, and before that a player that starts."""
LEAST_SECONDS = 6.0
"""A run that has less is too short for them."""
ASKED_SECONDS = 600.0
"""So long may they take if the user has given their number."""
RANDOM_SECONDS = 3.0
"""So long random play is waited for once all members have played."""
WAIT_SECONDS = 0.1

FinalChild = Child[None, FinalRound]


def final_seconds(config: Config, spec: EnvSpec, trained_seconds: float) -> float:
    """Return how long final games may take; 0 if there are to be none.

    None in games of several agents, where a score means little without its opponents, and with tasks, where it takes an
    episode of each. In `serial` mode none unless asked for, by their number, evaluations or a control
    group: how many end in time differs from run to run.
    """
    asked = config.final_episodes
    if asked == 0 or spec.seats > 1 or spec.tasks:
        return 0.0
    if asked is not None or config.pbt.evaluate_episodes or config.controls:
        return ASKED_SECONDS
    if config.mode == "serial":
        return 0.0
    seconds = min(MOST_SECONDS, SHARE * trained_seconds)
    return seconds if seconds >= LEAST_SECONDS else 0.0


def candidates(members: Sequence[MemberView], checkpoint: Checkpoint, config: Config) -> list[int]:
    """Return who plays, of those whose weights are saved: the first of the ranking, stopped ones too.

    If the user asks for final games, as many members that have no objective since their last change, too: fresh copies
    of good ones. With evaluations, or with a control group, everyone plays.
    """
    asked = config.final_episodes
    saved = {one.member for one in checkpoint.members()}
    known = [m for m in members if known_objective(m) is not None and m.member in saved]
    best = sorted(known, key=lambda m: (-(known_objective(m) or 0.0), m.member))
    ranking = [m.member for m in best]
    unknown = sorted(saved - {*ranking})
    if config.pbt.evaluate_episodes or config.controls:
        return [*ranking, *unknown]
    return [*ranking[:CANDIDATES], *unknown[: CANDIDATES if asked and ranking else 0]]


def play_final_games(
    config: Config,
    checkpoint: Checkpoint,
    members: Sequence[int],
    seconds: float,
    logs: Path | None,
    stop: Callable[[], bool],
    note: Callable[[str], None],
) -> dict[int, FinalGames]:
    """Return member -> its games, for all of these members; nothing if not every one of them has finished a round.

    stop: gives up. note: is told what begins and what went wrong.
    """
    episodes = config.final_episodes or EPISODES
    names = ", ".join(map(str, members))
    note(f"final games: {episodes} episodes of each of the members {names} (limit {seconds:.0f} s)")
    began, ready = time.monotonic(), False
    children: dict[int, FinalChild] = {}
    scores: dict[int, list[float]] = {member: [] for member in members}
    waiting = deque(members)
    try:
        while (waiting or children) and not stop():
            limit = seconds if ready and all(scores.values()) else max(seconds, MOST_SECONDS)
            if time.monotonic() - began > limit:
                break
            while waiting and len(children) < CANDIDATES:
                member = waiting.popleft()
                setup = FinalSetup(config, checkpoint, member, episodes)
                children[member] = _final_child(f"final games of member {member}", setup, logs)
            wait(
                [source for child in children.values() for source in (child.connection, child.sentinel)],
                WAIT_SECONDS,
            )
            for member, child in list(children.items()):
                ended = child.exit_code() is not None  # asked first: what it has sent before is read below
                for message in child.messages():
                    began, ready = (began, True) if ready else (time.monotonic(), True)
                    scores[member] += message.objectives
                if ended:
                    if child.exit_code():
                        note(child.how_it_ended())
                    children.pop(member).end(0.0)
    finally:
        for child in children.values():
            child.end(0.0)
    if not all(scores.values()):
        note(
            "final games: not every member has finished one in time; the best is named by its objective in training"
        )
        return {}
    if config.controls:  # the best of several means is the higher the fewer episodes each is of
        least = min(map(len, scores.values()))
        scores = {member: own[:least] for member, own in scores.items()}
    return {
        member: FinalGames(mean(own), spread(own), len(own), _halves(own) if config.controls else None)
        for member, own in scores.items()
    }


def _final_child(name: str, setup: FinalSetup, logs: Path | None) -> FinalChild:
    who = "random" if setup.member is None else setup.member
    return Child(JUDGE, name, setup, (), None if logs is None else logs / f"final_{who}.log")


def _halves(scores: Sequence[float]) -> tuple[float, float] | None:
    return (mean(scores[::2]), mean(scores[1::2])) if len(scores) > 1 else None
