"""Evaluation episodes of a run's saved members. Validation episodes select a member, and test episodes score it.

    run -+-> validation episodes of each member -> picked member -+-> judged.json in the run's folder
         +-> test episodes of each member ------------------------+

The picked member has the best validation score.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from msgspec import convert

from pbt_rl.errors import ConfigError
from pbt_rl.learner.build import one_thread
from pbt_rl.play.member import Policy, counted_objectives, evaluation_spec, load_pack, play_episodes
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import read_object
from pbt_rl.record.saved import Source, find_saved, read_config

FILE = "judged.json"
VALIDATION, TEST = 1_000_003, 2_000_003
"""Evaluation seeds for training seed 0. For training seed s, 1000 * s is added in every arm."""
ROWS = 25
"""Maximum number of environments in an evaluation."""


@dataclass(frozen=True)
class Judged:
    """Mean scores of each saved member of a run.

    games: number of episodes per score (of each task, if the environment has tasks). frames: sum of the frames of all
    members. members: ids. validation, test: one mean score for each id in `members`.
    """

    games: int
    frames: int
    members: tuple[int, ...]
    validation: tuple[float, ...]
    test: tuple[float, ...]

    @property
    def picked(self) -> int:
        """Index into `members` of the best validation score. Ties go to the lower index. NaN is the worst score."""
        scores = [-math.inf if math.isnan(score) else score for score in self.validation]
        return scores.index(max(scores))

    @property
    def score(self) -> float:
        """Test score of the picked member."""
        return self.test[self.picked]


def judge(run: Path, episodes: int) -> Judged:
    """Evaluate all saved members of a completed run, and write the scores to FILE.

    episodes: number of episodes per score (of each task, if the environment has tasks).
    Raises ConfigError if the summary or a saved member cannot be read. Raises EnvSetupError if the environment raises
    an error.
    """
    frames, seed = frames_of(run), read_config(run).seed
    validation = evaluate_members(run, episodes, VALIDATION + 1000 * seed)
    test = evaluate_members(run, episodes, TEST + 1000 * seed)
    members = sorted(test)
    scores = (tuple(one[member] for member in members) for one in (validation, test))
    judged = Judged(episodes, frames, tuple(members), *scores)
    partial = run / f"{FILE}.partial"
    partial.write_text(json.dumps(judged.__dict__) + "\n")
    partial.replace(run / FILE)
    return judged


def read_judged(run: Path, episodes: int) -> Judged | None:
    """Read the scores of a run. Return None if the members must be evaluated again.

    Reasons for None: the file or the summary of the run is missing or damaged, the number of episodes differs, or the
    run was trained further after the file was written.
    """
    try:
        found = convert(json.loads((run / FILE).read_text()), Judged)
        frames = frames_of(run)
    except (OSError, ValueError):
        return None
    whole = len(found.members) == len(found.validation) == len(found.test) > 0
    return found if whole and (found.games, found.frames) == (episodes, frames) else None


def frames_of(run: Path) -> int:
    """Return the sum of the members' frames in a completed run. Raises ConfigError if its summary cannot be read."""
    path = RunFolder(run).summary
    remedy = f"remove the folder {run} and repeat the command to train the run again"
    frames = read_object(path, f"{path} is missing: {remedy}").get("frames")
    if not isinstance(frames, int):
        raise ConfigError(f"{path} is not the summary of a run: {remedy}")
    return frames


def evaluate_members(run: Path, episodes: int, seed: int) -> dict[int, float]:
    """Return member -> mean objective of the evaluation episodes. All members have the evaluation seed `seed`.

    episodes: number of episodes of each member (and of each task).
    """
    config = read_config(run)
    spec, options = evaluation_spec(config)
    scores = {}
    for saved in find_saved(Source(run), print).checkpoint.members():
        pack = load_pack(config, spec, find_saved(Source(run, None, str(saved.member)), print), seed)
        policy = Policy(pack, spec, config.model, seed, greedy=False)
        with one_thread():
            played = play_episodes(policy, options, episodes, seed, most=ROWS)
        scores[saved.member] = fmean(counted_objectives(spec, played))
    return scores
