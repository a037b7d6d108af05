"""Evaluations during training, and the final evaluation.

At a fixed interval of frames, the best member plays evaluation episodes in a separate process:

    due -> the run is saved -> the best member of this checkpoint plays -> journal, TensorBoard, trackers

The process takes CPU time from the training, and does not affect the run otherwise. If the process dies, its result is
missing. There is at most one evaluation at a time. If one becomes due during another evaluation, it begins after the
other evaluation, also at the end of the run. Of several that become due meanwhile, only one begins.

The final evaluation selects the best member of the run. (A member's objective in training is the mean of its latest
episodes, and the highest of many such means is biased upwards.) The members with the highest objectives play evaluation
episodes in the environment of `pbt-rl eval`. Each member plays in a separate process, with its weights from the last
checkpoint. The final evaluation does not change members or decisions.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO

from pbt_rl.config import Config
from pbt_rl.controllers.events import Evaluation as Recorded
from pbt_rl.controllers.events import decode_event
from pbt_rl.controllers.objectives import mean, spread
from pbt_rl.display.ranking import known_objective
from pbt_rl.display.view import Evaluation, FinalEvaluation, MemberView, RunView
from pbt_rl.envs.base import EnvSpec
from pbt_rl.errors import require
from pbt_rl.plan import Plan
from pbt_rl.play.evaluation.episodes import JUDGE, Evaluated, EvaluationSetup, FinalRound, FinalSetup
from pbt_rl.play.film import check_clips
from pbt_rl.processes.child import Child
from pbt_rl.record.append import reason
from pbt_rl.record.checkpoints import Checkpoint

PRIORITY = 5
"""Niceness of an evaluation, because training has priority. (On busy cores, the process gets a quarter of a core.)"""
LIMIT_SECONDS = 3600.0
"""Timeout of an evaluation."""
LAST_SECONDS = 30.0
"""Timeout of the evaluation that is in progress at the end of a run."""
POLL_SECONDS = 0.05
Record = Callable[[Evaluation, bytes], None]
"""Function that receives the result of an evaluation and a GIF of the first episode. The GIF can be empty."""


@dataclass(frozen=True)
class _Playing:
    """Evaluation in progress. what: its result, still without scores. clip: file for the GIF."""

    child: Child[None, Evaluated]
    what: Evaluation
    began: float
    clip: IO[bytes] | None


def check(config: Config, spec: EnvSpec, _plan: Plan) -> None:
    """Raise ConfigError if the requested evaluations during training, or their clips, are impossible."""
    require(
        not config.evaluate_every_frames or spec.agents == 1,
        "evaluate-every-frames",
        config.evaluate_every_frames,
        f"a score of {config.env} depends on the opponents: leave it out, and compare members with "
        "`pbt-rl eval --against`",
    )
    if config.evaluate_video:
        check_clips(config)


def recorded_late(journal: Path, position: int, frames: int) -> list[Evaluation]:
    """Return the late evaluations of a resumed run.

    A late evaluation was recorded after the checkpoint from which the run resumes, but evaluates this checkpoint or an
    earlier one. (Late evaluations remain valid, although the resume truncates the journal.)
    position: length of the journal at the checkpoint, in bytes. frames: frames of the checkpoint.
    """
    found: list[Evaluation] = []
    if not journal.exists():  # the code that continues the journal reports this error
        return found
    with journal.open("rb") as file:
        file.seek(position)
        for line in file:  # line by line, because the journal may have grown for days since the checkpoint
            try:
                event = decode_event(line, 0)
            except ValueError:  # damaged, or incomplete because the process was killed while it wrote
                continue
            if isinstance(event, Recorded) and event.at_frames <= frames:
                facts = {one.name: getattr(event, one.name) for one in fields(Evaluation)[1:]}
                found.append(Evaluation(event.at_frames, **facts))
    return found


class Evaluations:
    """Schedule and results of evaluations during training, and the final evaluation. Not thread-safe.

    logs: folder for the output of the processes. evaluated_frames: returns the population clock of the newest recorded
    evaluation. record: function that receives results. note: function that receives messages for the user.
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
        """Return True if an evaluation is due and no other evaluation is in progress. frames: population clock."""
        every, before = self._every, max(self._taken_frames, self._evaluated_frames())
        return every > 0 and self._playing is None and frames // every > before // every

    def take(self, frames: int) -> bool:
        """Return True if an evaluation is due, and record it as started. After True, save the run and call `begin`.

        Afterwards, `due` returns False until the next multiple of --evaluate-every-frames. frames: population clock.
        """
        is_due = self.due(frames)
        if is_due:
            self._taken_frames = frames
        return is_due

    def begin(self, checkpoint: Checkpoint, member: int | None, all_frames: int) -> None:
        """Start the evaluation of a member of a checkpoint.

        member: None, or a member that the checkpoint does not contain: no evaluation starts.
        all_frames: sum of the frames of all members at the checkpoint.
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
        """Record the result of the evaluation in progress if it has ended. Abort it after LIMIT_SECONDS.

        Without a result, print the reason.
        """
        playing = self._playing
        if playing is None:
            return
        ended = playing.child.exit_code() is not None  # checked first, so that no message is missed
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
            self._note("the following evaluations are not filmed")

    def finish(self, may_wait: Callable[[], bool]) -> None:
        """Wait at most LAST_SECONDS for the evaluation in progress, while `may_wait` returns True. Then abort it."""
        deadline = time.monotonic() + LAST_SECONDS
        while self._playing is not None and may_wait() and time.monotonic() < deadline:
            self.step()
            time.sleep(POLL_SECONDS)
        if self._playing is not None:
            frames = self._playing.what.frames
            self._release()
            self._note(f"the evaluation at {frames:,} frames was aborted, because the run ended first")

    def judged(
        self,
        view: RunView,
        spec: EnvSpec,
        checkpoint: Checkpoint,
        trained_seconds: float,
        stop: Callable[[], bool],
    ) -> RunView:
        """Run the final evaluation if the run has one. Return the view, extended by the results.

        trained_seconds: seconds of training. stop: function that returns True to abort.
        """
        seconds = final_seconds(self._config, spec, trained_seconds)
        members = candidates(view.members, checkpoint, self._config)
        if not (seconds and members):
            return view
        config, logs = self._config, self._logs
        number = config.final_episodes or EPISODES
        chance = _final_child("random policy", FinalSetup(config, checkpoint, None, number), logs)
        deadline = time.monotonic() + seconds
        try:
            played = run_final_evaluation(config, checkpoint, members, seconds, logs, stop, self._note)
            left = min(RANDOM_SECONDS, deadline - time.monotonic())
            wait([chance.sentinel], max(0.0, left) if played and not stop() else 0.0)
            drawn = [score for message in chance.messages() for score in message.objectives]
        finally:
            chance.end(0.0)
        views = [replace(m, final=played.get(m.member)) for m in view.members]
        return replace(view, members=views, random_policy=mean(drawn) if played and drawn else None)

    def _release(self) -> None:
        playing, self._playing = self._playing, None
        assert playing is not None
        playing.child.end(0.0)
        if playing.clip is not None:
            playing.clip.close()

    def _failed(self, why: str) -> None:
        """Print an error, unless the previous evaluation failed with an equal error."""
        if why != self._said:
            self._said = why
            self._note(f"an evaluation failed: {why}; training continues")


CANDIDATES = 4
"""Default number of members in the final evaluation, and maximum number of members that play in parallel."""
EPISODES = 20
"""Default number of episodes per member."""
SHARE = 0.1
"""Default time limit as a fraction of the training time."""
LEAST_SECONDS, MOST_SECONDS = 30.0, 60.0
"""Minimum and maximum of the default time limit. The limit includes the start of the processes, which may take most of
LEAST_SECONDS on a busy machine."""
LEAST_TRAINED_SECONDS = 60.0
"""Minimum training time of a run with a final evaluation by default."""
ASKED_SECONDS = 600.0
"""Time limit if the user requests a number of episodes, evaluations before comparisons, or a control group."""
RANDOM_SECONDS = 3.0
"""Maximum time to wait for the random policy's episodes after the evaluation of the members."""
NOTE_SECONDS = 10.0
"""Time between two messages about the progress of the final evaluation."""
WAIT_SECONDS = 0.1

FinalChild = Child[None, FinalRound]


def final_seconds(config: Config, spec: EnvSpec, trained_seconds: float) -> float:
    """Return the time limit of the final evaluation. 0 means no final evaluation.

    Runs without a final evaluation:

    - runs with --final-episodes 0
    - multi-agent environments, because a score depends on the opponents
    - environments with tasks, because each score needs an episode of every task
    - `serial` mode by default, because results under a time limit are not reproducible
    - short runs by default

    Runs of the last two kinds have a final evaluation if --final-episodes, --pbt.evaluate-episodes or --control is set
    to a positive number.
    """
    asked = config.final_episodes
    if asked == 0 or spec.agents > 1 or spec.tasks:
        return 0.0
    if asked is not None or config.pbt.evaluate_episodes or config.controls:
        return ASKED_SECONDS
    if config.mode == "serial":
        return 0.0
    if trained_seconds < LEAST_TRAINED_SECONDS:
        return 0.0
    return min(MOST_SECONDS, max(LEAST_SECONDS, SHARE * trained_seconds))


def candidates(members: Sequence[MemberView], checkpoint: Checkpoint, config: Config) -> list[int]:
    """Return the members of the final evaluation: of the saved members, the CANDIDATES with the best objectives.

    Stopped members are included. If the user requests a number of episodes, and a member has an objective, up to
    CANDIDATES members without an objective are added, because they may be new copies of good members.
    With evaluations before comparisons, or with a control group, all saved members are returned.
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


def run_final_evaluation(
    config: Config,
    checkpoint: Checkpoint,
    members: Sequence[int],
    seconds: float,
    logs: Path | None,
    stop: Callable[[], bool],
    note: Callable[[str], None],
) -> dict[int, FinalEvaluation]:
    """Run the final evaluation. Return member -> result.

    Empty if any member has no finished round, because of the time limit, a failure of its process, or `stop`.
    seconds: time limit. stop: function that returns True to abort. note: function that receives messages for the user.
    """
    episodes = config.final_episodes or EPISODES
    names = ", ".join(map(str, members))
    note(f"final evaluation: {episodes} episodes of each of the members {names} (limit {seconds:.0f} s)")
    deadline = time.monotonic() + seconds
    due, played = time.monotonic() + NOTE_SECONDS, 0
    children: dict[int, FinalChild] = {}
    scores: dict[int, list[float]] = {member: [] for member in members}
    waiting = deque(members)
    try:
        while (waiting or children) and not stop() and time.monotonic() < deadline:
            while waiting and len(children) < CANDIDATES:
                member = waiting.popleft()
                setup = FinalSetup(config, checkpoint, member, episodes)
                children[member] = _final_child(f"final evaluation of member {member}", setup, logs)
            wait(
                [source for child in children.values() for source in (child.connection, child.sentinel)],
                WAIT_SECONDS,
            )
            for member, child in list(children.items()):
                ended = child.exit_code() is not None  # checked first, so that no message is missed
                for message in child.messages():
                    scores[member] += message.objectives
                    played += message.ended
                if ended:
                    if child.exit_code():
                        note(child.how_it_ended())
                    children.pop(member).end(0.0)
            if time.monotonic() >= due and (waiting or children):
                due += NOTE_SECONDS
                note(f"final evaluation: {played} of {episodes * len(members)} episodes")
    finally:
        for child in children.values():
            child.end(0.0)
    if not all(scores.values()):
        note(
            "final evaluation: not every environment has finished an episode in time; objectives in training select "
            "the best member. `pbt-rl eval` has no time limit, and --final-episodes sets a limit of ten minutes"
        )
        return {}
    return _results(scores, controls=bool(config.controls))


def _results(scores: Mapping[int, list[float]], *, controls: bool) -> dict[int, FinalEvaluation]:
    if controls:  # equal numbers of episodes, because the highest of many means is higher with fewer episodes
        least = min(map(len, scores.values()))
        scores = {member: own[:least] for member, own in scores.items()}
    return {
        member: FinalEvaluation(mean(own), spread(own), len(own), _halves(own) if controls else None)
        for member, own in scores.items()
    }


def _final_child(name: str, setup: FinalSetup, logs: Path | None) -> FinalChild:
    who = "random" if setup.member is None else setup.member
    return Child(JUDGE, name, setup, (), None if logs is None else logs / f"final_{who}.log")


def _halves(scores: Sequence[float]) -> tuple[float, float] | None:
    return (mean(scores[::2]), mean(scores[1::2])) if len(scores) > 1 else None
