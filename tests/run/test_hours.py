"""`--hours`: what follows from a time, and what stays as it is given."""

import json
import re

import pytest

from pbt_rl.cli.resume import parse_resume
from pbt_rl.config.budget import following_hours, timed
from pbt_rl.config.command import parse_train
from pbt_rl.controllers.events import Comparison
from pbt_rl.display.ranking import in_time
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import to_json
from pbt_rl.record.journal import journal_events
from pbt_rl.report.audit import audit
from pbt_rl.run.shown import describe_plan, page, unread
from pbt_rl.run.train import resolve, train


def planned(words, env="toy/identity"):
    return parse_train(f"--env {env} {words}".split())


def test_thirty_comparisons_follow_from_a_time_and_what_is_given_stays():
    config = planned("--hours 0.5")
    assert (config.train_for_seconds, config.pbt.ready) == (1800, "timed")
    assert 30 * config.pbt.period_seconds < 1800 < 31.5 * config.pbt.period_seconds
    assert config.train_for_frames > 10**12
    assert "--hours 0.5: 30 min " in "\n".join(describe_plan(resolve(config)))
    config = planned("--hours 0.5 --train-for-frames 5000 --pbt.ready synchronous --pbt.period-frames 700")
    assert (config.train_for_frames, config.pbt.ready, config.pbt.period_frames) == (5000, "synchronous", 700)
    assert planned("--hours 0.5 --pbt.period-seconds 7").pbt.period_seconds == 7
    assert planned("--hours 0.5 --train-for-seconds 310").pbt.period_seconds == 10


@pytest.mark.parametrize("hours", [0.1, 0.5, 1, 2, 3, 4, 8, 12, 24, 100])
def test_no_further_comparison_comes_just_before_the_end(hours):
    period = following_hours({"hours": hours}, {})["pbt.period_seconds"]
    assert 30 * period < 3600 * hours <= 31 * period


@pytest.mark.parametrize("env", ["toy/memory", "tensors/pendulum", "gym/CartPole-v1", "atari/pong"])
@pytest.mark.parametrize("frames", ["", "--train-for-frames 300000"])
def test_comparisons_follow_from_the_frames_of_the_run_and_not_of_its_recipe(env, frames):
    config = planned(frames, env=env)
    budget, pbt = config.train_for_frames, config.pbt
    assert pbt.start_frames / budget == pytest.approx(0.05, rel=0.01)
    assert (1 + (budget - 1 - pbt.start_frames) // pbt.period_frames) == 24
    given = planned(f"{frames} --pbt.period-frames 7000", env=env).pbt
    assert (given.start_frames, given.period_frames) == (pbt.start_frames, 7000)


def test_comparisons_follow_from_a_budget_of_seconds_if_nothing_else_is_given():
    config = planned("--train-for-seconds 310")
    assert (config.pbt.ready, config.pbt.period_seconds) == ("timed", 10)
    for words in (
        "--mode serial",
        "--train-for-frames 5000",
        "--pbt.period-frames 700",
        "--controller mf-pbt",
    ):
        assert planned(f"--train-for-seconds 310 {words}").pbt.ready == "synchronous"


def test_a_run_that_is_resumed_with_more_frames_keeps_its_times(tmp_path):
    words = f"--mode serial --num-policies 2 --no-figures --out {tmp_path} --name x --train-for-frames 2500"
    assert train(planned(words)) == 0
    more = parse_resume(tmp_path / "x", ["--train-for-frames", "5000"])
    assert (more.train_for_frames, more.pbt.start_frames, more.pbt.period_frames) == (5000, 125, 100)


@pytest.mark.parametrize(
    ("more", "period"),
    [
        ("--train-for-frames 5000", 100),
        ("--hours 0.0005", 100),
        ("--train-for-frames 5000 --pbt.period-frames 300", 300),
    ],
)
def test_a_run_that_is_continued_by_its_name_keeps_its_times(tmp_path, pbt_rl, more, period):
    words = "train --env toy/identity --mode serial --num-policies 2 --no-figures --final-episodes 0 --name x"
    assert pbt_rl(*words.split(), "--train-for-frames", "2500")[0] == 0
    code, _, err = pbt_rl(*words.split(), *more.split())
    assert code == 0, err
    now = json.loads((tmp_path / "runs" / "x" / "config.json").read_text())["pbt"]
    assert (now["ready"], now["start_frames"], now["period_frames"]) == ("synchronous", 125, period)


def test_hours_replace_a_budget_of_frames_when_a_run_is_resumed(tmp_path):
    words = f"--mode serial --num-policies 2 --no-figures --out {tmp_path} --name x --train-for-frames 2500"
    assert train(planned(words)) == 0
    assert train(parse_resume(tmp_path / "x", ["--hours", "0.0005"])) == 0
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert (summary["ended"], summary["members"][0]["frames"] > 2500) == ("seconds", True)
    both = parse_resume(tmp_path / "x", ["--hours", "1", "--train-for-frames", "9k"])
    assert (both.train_for_frames, both.train_for_seconds) == (9000, 3600)


def test_hours_on_the_command_line_replace_the_budget_of_a_file(tmp_path):
    whole = tmp_path / "config.json"
    whole.write_text(json.dumps(to_json(planned("--train-for-frames 2500 --pbt.mutation-rate 0.7"))))
    config = planned(f"--config {whole} --hours 0.5")
    assert (config.train_for_seconds, config.pbt.ready, config.pbt.mutation_rate) == (1800, "timed", 0.7)
    assert config.train_for_frames > 10**12
    whole.write_text(json.dumps(to_json(planned("--hours 0.5"))))
    config = planned(f"--config {whole} --hours 1")
    assert (config.train_for_seconds, config.pbt.period_seconds) == (3600, timed(3600)["pbt.period_seconds"])
    assert planned(f"--config {whole}").train_for_seconds == 1800


@pytest.mark.parametrize("words", ["--pbt.period-frames 700", "--pbt.start-frames 700"])
def test_frames_without_effect_beside_hours_get_a_note(words):
    (note,) = [line for line in unread(resolve(planned(f"--hours 0.5 {words}"))) if "no effect" in line]
    assert note.startswith(f"note: {words} has no effect")
    assert not unread(resolve(planned("--hours 0.5")))
    assert not unread(resolve(planned("--hours 0.5 --pbt.ready synchronous --pbt.period-frames 700")))


def test_more_hours_continue_a_run_with_its_period(tmp_path):
    words = f"--hours 0.0005 --num-policies 2 --no-figures --out {tmp_path} --name x"
    assert train(planned(words)) == 0
    period = json.loads((tmp_path / "x" / "config.json").read_text())["pbt"]["period_seconds"]
    more = parse_resume(tmp_path / "x", ["--hours", "0.001"])
    assert (more.hours, more.train_for_seconds, more.pbt.period_seconds) == (0.001, 3.6, period)
    assert train(more) == 0
    assert json.loads((tmp_path / "x" / "summary.json").read_text())["training_seconds"] >= 3.6


def test_a_period_shorter_than_an_episode_of_each_environment_is_told_before_the_start():
    def notes(words):
        return [
            line for line in describe_plan(resolve(planned(words, "atari/pong"))) if "Comparisons are" in line
        ]

    (note,) = notes("--hours 0.05")
    assert "--envs-per-vector-env 1" in note
    assert "every 5.81 s" in note
    (note,) = notes("--hours 0.005 --envs-per-vector-env 1")
    assert "--envs-per-vector-env" not in note
    assert not notes("--hours 50")
    assert not notes("--train-for-frames 1M")


def test_the_plan_of_a_time_names_no_frames():
    config = planned("--hours 0.05 --train-for-seconds 600")
    resolved = resolve(config)
    told = "\n".join([*describe_plan(resolved), *page(resolved, resolved.controller().initial(4)[0])])
    assert re.search(r"--hours 0\.05: 10 min .*--train-for-seconds 600", told)
    assert "000000" not in told
    assert "--train-for-frames 5000" in "\n".join(
        page(resolve(planned("--hours 0.5 --train-for-frames 5000")), resolved.controller().initial(4)[0])
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5.806, "5.81 s"), (60, "1 min"), (150, "2 min 30 s"), (3600, "1 h"), (86400 * 2 + 7300, "2 days 2 h")],
)
def test_durations_are_in_their_largest_vector_envs(seconds, text):
    assert in_time(seconds) == text


@pytest.mark.parametrize("words", ["--controller asha", "--pbt.no-enabled"])
def test_members_that_are_not_compared_have_no_times(words):
    with pytest.raises(ConfigError, match=r"--hours 0\.5 .*--train-for-seconds"):
        planned(f"--hours 0.5 {words}")


@pytest.mark.long
def test_a_run_holds_thirty_comparisons(tmp_path):
    words = f"--hours 0.005 --mode serial --num-policies 4 --no-figures --out {tmp_path} --name x"
    assert train(planned(f"{words} --pbt.min-episodes 1")) == 0
    rounds = [e for e in journal_events(tmp_path / "x") if isinstance(e, Comparison)]
    assert 20 <= len(rounds) <= 31, "fewer if the machine is busy"
    assert audit(tmp_path / "x") == 0


ENDLESS = """
import gymnasium
import numpy as np


class Endless(gymnasium.Env):
    # Episodes of four steps. The first environment of the process never ends its episode.
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self):
        Endless.made += 1
        self.endless = Endless.made == 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(action), not self.endless and self.steps == 4, False, {}
"""


@pytest.mark.long
def test_an_episode_that_never_ends_does_not_exclude_its_member_for_ever(tmp_path, monkeypatch):
    """A timeout of ten periods, also if periods are seconds."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(tmp_path)
    words = f"--hours 0.002 --mode serial --num-policies 2 --no-figures --out {tmp_path} --name x"
    assert train(planned(words, "endless:Endless")) == 0
    compared = [e for e in journal_events(tmp_path / "x") if isinstance(e, Comparison)]
    assert any(all(m.objectives for m in e.report.members) for e in compared)
