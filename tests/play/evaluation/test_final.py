"""Final evaluation: who plays, for how long, what counts, and who is named the best."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import pbt_rl
from pbt_rl.cli.report import run_audit
from pbt_rl.config import Config, ModelConfig
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.display.ranking import best_member, ranked, table_lines
from pbt_rl.display.scalars import summary
from pbt_rl.display.view import FinalEvaluation
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.play.evaluation import evaluations
from pbt_rl.play.evaluation.episodes import FinalRound, FinalSetup, final_rounds, rounds, rows_of
from pbt_rl.play.evaluation.evaluations import ASKED_SECONDS, candidates, final_seconds, run_final_evaluation
from pbt_rl.record.checkpoints import Checkpoints
from pbt_rl.record.saved import Source, find_saved
from tests.helpers.saved import saved_run
from tests.helpers.views import member, view

SPEC = EnvSpec("toy/x", {"obs": ArraySpec((1,), "float32")}, ActionSpec(nvec=(2,)))


@pytest.mark.parametrize(
    ("asked", "changes", "trained", "seconds"),
    [
        (None, {}, 150, 30),
        (None, {}, 450, 45),
        (None, {}, 7200, 60),
        (None, {}, 59, 0),
        (0, {}, 7200, 0),
        (5, {}, 1, ASKED_SECONDS),
        (None, {"mode": "serial"}, 7200, 0),
        (5, {"mode": "serial"}, 1, ASKED_SECONDS),
        (5, {"agents": 2}, 7200, 0),
        (5, {"tasks": ("a", "b")}, 7200, 0),
    ],
)
def test_they_take_a_tenth_of_the_time_unless_their_number_is_given(asked, changes, trained, seconds):
    config = Config(env="toy/identity", mode=changes.get("mode", "async"), final_episodes=asked)
    spec = replace(SPEC, **{name: value for name, value in changes.items() if name != "mode"})
    assert final_seconds(config, spec, trained) == seconds


class Uneven:
    """Row r has episodes of r + 1 steps; an objective counts the row's episodes."""

    spec, rows = SPEC, 2

    def reset(self, out):
        self.steps, self.ended = np.zeros(2, int), np.zeros(2)

    def step(self, _action, out):
        self.steps += 1
        out.episode_done[:] = self.steps == np.arange(2) + 1
        self.steps[out.episode_done] = 0
        self.ended += out.episode_done
        out.objective[:] = 10 * np.arange(2) + self.ended


def test_rounds_hold_one_episode_of_every_row_so_short_ones_are_not_preferred():
    class Player:
        def act(self, _step):
            return np.zeros((2, 1), np.int32)

    played = list(rounds(Uneven(), Player(), 3))
    assert [one.objectives for one in played if one.objectives] == [(1, 11), (2, 12), (3, 13)]
    assert [one.ended for one in played] == [1, 2, 1, 1, 1], "those beyond the third of a row are not counted"
    assert [rows_of(episodes) for episodes in (1, 7, 20, 24, 11)] == [1, 7, 5, 8, 1]


def test_the_best_is_the_best_of_the_final_evaluation():
    games = {0: None, 1: FinalEvaluation(3.0, 1.0, 20), 2: FinalEvaluation(4.0, 1.0, 20)}
    members = [replace(member(i, objective), final=games[i]) for i, objective in enumerate((2.0, 9.0, 8.0))]
    assert best_member(members) == 2
    assert [m.member for m in ranked(members)] == [2, 1, 0]
    header, first, _, last = table_lines(view(*members), 200)
    assert header.split()[:3] == ["member", "final", "objective"]
    assert first.split()[:3] == ["2", "4.00", "8.00"]
    assert last.split()[1] == "-"
    content = summary(view(*members), frames_per_second_steady=1, replacement_milliseconds=(), ended="frames")
    assert content["best_member"] == 2
    assert content["members"][2]["final"] == {"mean": 4.0, "spread": 1.0, "episodes": 20}
    assert content["members"][2]["objective"] == 8
    assert "final" not in table_lines(view(member(0)), 200)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    few = {"num_policies": 2, "mode": "serial", "devices": "cpu", "actors": 1, "figures": False}
    where = {"out": tmp_path_factory.mktemp("final"), "name": "x"}
    return pbt_rl.train(env="toy/identity", train_for_frames=600, final_episodes=4, **few, **where)


def test_a_run_names_the_best_by_them_and_eval_follows(run):
    final_scores = {m.id: m.final["mean"] for m in run.members}
    assert run.best.id == max(final_scores, key=lambda i: (final_scores[i], -i))
    assert [m.final["episodes"] for m in run.members] == [4, 4]
    assert run.summary["random_play"] < max(final_scores.values()), "toy/identity is learned at once"
    assert find_saved(Source(run.folder), print).member == run.best.id
    other = 1 - run.best.id
    text = run.paths.summary.read_text()
    run.paths.summary.write_text(text.replace(f'"best_member": {run.best.id}', f'"best_member": {other}'))
    assert find_saved(Source(run.folder), print).member == other, "the summary names it"
    run.paths.summary.write_text(text)
    kinds = [event["event"] for event in run.journal]
    assert kinds[-2:] == ["final", "end"]
    assert run.journal[-2]["random_play"] == run.summary["random_play"]
    assert run_audit([str(run.folder)]) == 0


@pytest.mark.parametrize(
    ("options", "known", "playing"),
    [
        ({}, 6, [5, 4, 3, 2]),
        ({"final_episodes": 20}, 6, [5, 4, 3, 2, 6, 7, 8, 9]),
        ({"final_episodes": 20}, 0, []),
        ({"pbt": PbtConfig(evaluate_episodes=8)}, 3, [2, 1, 0, *range(3, 12)]),
    ],
)
def test_who_plays(options, known, playing):
    saved = SimpleNamespace(members=lambda: [SimpleNamespace(member=i) for i in range(12)])
    views = [member(i, float(i) if i < known else None) for i in range(12)]
    assert candidates(views, saved, Config(env="toy/identity", **options)) == playing


def test_without_time_nobody_is_judged_and_nothing_is_left(run):
    notes = []
    checkpoint = Checkpoints(run.paths.checkpoints).newest(print)
    views = [member(0, 1.0), member(1, 2.0), member(2, 3.0), member(3, None)]
    config = Config(env="toy/identity", final_episodes=4)
    assert candidates(views, checkpoint, config) == [1, 0], "those that are saved, best first"
    games = run_final_evaluation(config, checkpoint, [1, 0], 0.0, None, lambda: True, notes.append)
    assert games == {}
    assert notes[-1].startswith("final evaluation: ")


class Plays:
    """A process that is ready after a while, and then plays a round in ten seconds, forever."""

    connection = sentinel = None
    first = 1

    def __init__(self, *_):
        self.polls = 0

    def exit_code(self):
        return None

    def messages(self):
        self.polls += 1
        return [FinalRound((1.0,), 1)] if self.polls >= self.first else []

    def end(self, _timeout_seconds):
        pass


@pytest.mark.parametrize(("first", "played"), [(1, 3), (3, 1), (4, None)])
def test_the_final_evaluation_keeps_to_the_limit_that_it_names(monkeypatch, first, played):
    """It was waited for a minute for the first episodes: `limit 12 s` took 70 s, and had no result."""
    seconds, notes = [0.0], []
    monkeypatch.setattr(evaluations, "Child", Plays)
    monkeypatch.setattr(Plays, "first", first)
    monkeypatch.setattr(evaluations, "wait", lambda *_: seconds.append(seconds[-1] + 10.0))
    monkeypatch.setattr(evaluations.time, "monotonic", lambda: seconds[-1])
    finals = run_final_evaluation(
        Config(env="toy/identity"), None, [0], 30.0, None, lambda: False, notes.append
    )
    assert seconds[-1] == 30.0
    assert "(limit 30 s)" in notes[0]
    assert (finals[0].episodes if finals else None) == played


def test_rows_of_tensors_play_all_their_episodes_at_once(tmp_path):
    model = ModelConfig(encoder="mlp", hidden=8, layers=1)
    config = Config(env="tensors/pendulum", env_option=("limit=5",), num_policies=1, model=model)
    checkpoint = Checkpoints(saved_run(tmp_path / "run", config) / "checkpoints").all()[-1]
    (played,) = (r for r in final_rounds(FinalSetup(config, checkpoint, 0, 11)) if r.objectives)
    assert len(set(played.objectives)) == 11
