"""`scripts/storm.py`: a short storm, and that its checks complain of what they should."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

import storm  # noqa: E402
import storm_checks  # noqa: E402
from storm_counting import CheckedAdvantage  # noqa: E402

from pbt_rl.display.tensorboard import EventFile  # noqa: E402
from pbt_rl.envs.toy import Counting  # noqa: E402


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "serial"])
def test_a_short_storm(mode, tmp_path, monkeypatch):
    monkeypatch.setattr(storm.tempfile, "tempdir", str(tmp_path))
    tally = storm.storm(1, SEEDS[mode], 1, 60, mode, play=False)
    assert tally.failures == []
    assert (tally.blows.total(), tally.resumes + tally.anew) == (1, 1)
    assert "1 blows" in tally.show()


SEEDS = {"async": 36, "serial": 63}
"""Their first blow is a SIGKILL of everything while it trains, and of the only process during a checkpoint."""


# -- steps of toy/counting --------------------------------------------------------------------------------------


def steps(count, seed=5):
    """Steps of one row as a learner sees them: observations, actions, whether a reset delivered them."""
    env, rng = Counting(), np.random.default_rng(0)
    obs, action, first = [env.reset(seed=seed)[0]], [], [True]
    done = False
    for _ in range(count - 1):
        action.append(int(rng.integers(5)))
        if done:
            after, done = env.reset()[0], False
            first.append(True)
        else:
            after, _, terminated, truncated, _ = env.step(action[-1])
            done = terminated or truncated
            first.append(False)
        obs.append(after)
    return np.array(obs), np.array([*action, 0]), np.array(first)


def learned_from(*parts):
    check = CheckedAdvantage()
    return [error for part in parts for error in check.errors(*part)]


def cut(part, begin, end):
    return tuple(array[begin:end] for array in part)


def test_exact_steps_are_accepted():
    row, other = steps(60), steps(40, seed=6)
    assert learned_from(cut(row, 0, 30), cut(other, 0, 20), cut(row, 30, 60), cut(other, 20, 40)) == []
    restarted = tuple(np.concatenate(arrays) for arrays in zip(cut(row, 0, 22), other, strict=True))
    assert learned_from(restarted) == []
    assert learned_from(cut(row, 0, 20), cut(row, 40, 60)) == [], "rollouts may be discarded"


def test_inexact_steps_are_told():
    row = steps(60)
    assert "after" in learned_from(cut(row, 0, 30), cut(row, 20, 50))[0]
    without = tuple(np.delete(array, 7, axis=0) for array in row)
    assert "expected" in learned_from(without)[0]
    other_action = (row[0], np.where(np.arange(60) == 3, (row[1] + 1) % 5, row[1]), row[2])
    assert "expected" in learned_from(other_action)[0]


# -- the record ---------------------------------------------------------------------------------------------------


def event(kind, **content):
    return {"event": kind, "time": 0.0, "frames": 0, **content}


ROUND = event("round", report={"members": []}, decisions=[{"decision": "mutate", "member": 1}])
APPLIED = event("applied", member=1, generation=1)
START = [event("start"), event("initial")]


def complaints(tmp_path, *events, at=0.0):
    times = [at - i if at else i for i in range(len(events) + 2)]
    lines = [json.dumps(e | {"time": float(t)}) for e, t in zip([*START, *events], times, strict=True)]
    (tmp_path / "journal.jsonl").write_text("".join(line + "\n" for line in lines))
    return storm_checks.journal_reasons(tmp_path)


def test_the_journal_is_judged(tmp_path):
    again = APPLIED | {"generation": 2}
    assert complaints(tmp_path, ROUND, APPLIED, APPLIED, ROUND, again) == []
    assert "generations" in complaints(tmp_path, ROUND, ROUND, again)[0]
    lost = event("pack_lost", members=[{"member": 1}])
    assert complaints(tmp_path, ROUND, lost, ROUND, again) == []
    third = again | {"generation": 3}
    assert "generations" in complaints(tmp_path, ROUND, lost, APPLIED, ROUND, ROUND, third)[0]
    assert "decided" in complaints(tmp_path, ROUND, APPLIED, again)[0]
    assert "older" in complaints(tmp_path, ROUND, at=9.0)[0]
    told = [event("progress", members=[{"member": 0, "frames": frames}]) for frames in (20, 10)]
    assert "back" in complaints(tmp_path, *told)[0]
    line = json.dumps(event("start")) + "\n"
    (tmp_path / "journal.jsonl").write_text(line + line)
    assert "2 journal lines" in storm_checks.journal_reasons(tmp_path)[0]


def test_curves_are_judged(tmp_path):
    (tmp_path / "journal.jsonl").write_text("")
    for folder, reached in (("good", (5, 5, 9)), ("back", (5, 9, 8))):
        file = EventFile(tmp_path / folder)
        for step in reached:
            file.scalars({"x": 1.0}, step)
        file.close()
    assert storm_checks.curve_reasons(tmp_path) == ["back: x goes from step 9 to 8"]
    shutil.rmtree(tmp_path / "back")
    for last_step, reached in ((5, (7, 8)), (None, (8, 9))):
        file = EventFile(tmp_path / "good", last_step)
        for step in reached:
            file.scalars({"x": 1.0}, step)
        file.close()
    assert storm_checks.curve_reasons(tmp_path) == ["good: x goes from step 8 to 8"]


def test_files_that_nobody_knows_are_told(tmp_path):
    run = tmp_path / "x"
    (run / "checkpoints" / "at_5").mkdir(parents=True)
    (run / "config.json").touch()
    assert storm_checks.left_files(run) == []
    (run / ".config.json.71").touch()
    (run / "checkpoints" / "at_6.partial").mkdir()
    (tmp_path / ".x.replaced.0").mkdir()
    left = storm_checks.left_files(run)
    assert left == ["left: .config.json.71", "left: .x.replaced.0", "left: checkpoints/at_6.partial"]
