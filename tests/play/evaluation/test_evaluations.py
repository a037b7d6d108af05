"""Evaluations during training: when they are played, that they are fresh, that a resume goes on, that they harm
nobody."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import pbt_rl
from pbt_rl.config import Config
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec
from pbt_rl.errors import ConfigError
from pbt_rl.plan import Machine
from pbt_rl.play.evaluation.episodes import EPISODES, evaluation_seed
from pbt_rl.play.evaluation.evaluations import Evaluations, check, recorded_late
from pbt_rl.play.film import CLIP_SIZE, Clip
from pbt_rl.record.checkpoints import Checkpoints
from pbt_rl.record.history import read_run
from pbt_rl.report.page import page
from pbt_rl.report.pictures import PICTURES, draw
from pbt_rl.run.resolved import ResolvedRun
from tests.display.test_tensorboard import written

SPEC = EnvSpec("toy/x", {"obs": ArraySpec((1,), "float32")}, ActionSpec(nvec=(2,)))
EVERY = 300


def train(folder, frames):
    few = {"num_policies": 2, "mode": "serial", "devices": "cpu", "actors": 1, "figures": False}
    games = {"evaluate_every_frames": EVERY, "final_episodes": 0}
    games |= {"save_every_seconds": 0, "keep_checkpoints": 9}
    return pbt_rl.train(env="toy/identity", train_for_frames=frames, out=folder, name="x", **few, **games)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was resumed with a larger budget."""
    folder = tmp_path_factory.mktemp("evaluated")
    train(folder, 600)
    return train(folder, 1200)


def evaluations_of(run):
    return [event for event in run.journal if event["event"] == "evaluation"]


@pytest.mark.long
def test_a_run_records_them_and_goes_on_with_them_when_it_is_resumed(run):
    made = evaluations_of(run)
    frames = [event["at_frames"] for event in made]
    assert frames == sorted(set(frames))
    before, after = [f for f in frames if f <= 600], [f for f in frames if f > 600]
    assert before, "played before the run was saved for the last time, recorded after that"
    assert after
    assert all(event["episodes"] == EPISODES for event in made)


@pytest.mark.long
def test_they_are_a_curve_in_tensorboard_and_report(run):
    made = evaluations_of(run)
    curve = written(run.folder, "population")["evaluation/objective"]
    assert curve == [(e["all_frames"], pytest.approx(e["mean"])) for e in made]
    history = read_run(run.folder)
    assert [(e.at_frames, e.mean) for e in history.evaluations] == [(e["at_frames"], e["mean"]) for e in made]
    (picture,) = (picture for picture in PICTURES if picture.name == "evaluations")
    drawn = draw(picture, history, 40)
    assert isinstance(drawn, bytes)
    assert picture.title in page(history, [(picture, drawn)])


def test_their_seeds_are_those_of_no_actor_and_of_no_final_episode():
    config = Config(env="toy/identity", seed=7)
    actors = np.random.SeedSequence(7).spawn(64)
    assert evaluation_seed(config) not in {7, *(int(s.generate_state(1)[0]) for s in actors)}
    assert evaluation_seed(config) == evaluation_seed(config)
    assert evaluation_seed(config) != evaluation_seed(Config(env="toy/identity", seed=8))


def made(every=100, known=0, video=False):
    """Evaluations, and what they have recorded and noted."""
    seen = SimpleNamespace(recorded=[], notes=[], known=known)
    config = Config(env="toy/identity", evaluate_every_frames=every, evaluate_video=video, final_episodes=4)
    record = lambda *what: seen.recorded.append(what)  # noqa: E731
    return Evaluations(config, None, lambda: seen.known, record, seen.notes.append), seen


def test_when_one_is_due():
    one, seen = made()
    assert [one.due(frames) for frames in (0, 99, 100, 250)] == [False, False, True, True]
    assert one.take(250)
    assert not one.take(299), "at most one for every hundred frames"
    assert one.due(300)
    seen.known = 450  # as after a resume
    assert [one.due(frames) for frames in (460, 500)] == [False, True]


def wait(one, seconds=30):
    deadline = time.monotonic() + seconds
    while one._playing is not None and time.monotonic() < deadline:
        one.step()
        time.sleep(0.02)


@pytest.mark.long
def test_the_last_evaluation_is_run_although_another_one_runs_at_the_end(tmp_path):
    frames = [event["at_frames"] for event in evaluations_of(train(tmp_path, 20 * EVERY))]
    assert frames == sorted(set(frames))
    assert frames[0] < 20 * EVERY <= frames[-1]


@pytest.mark.long
def test_a_process_that_dies_costs_a_point_of_the_curve_and_no_more(run):
    one, seen = made()
    checkpoint = Checkpoints(run.paths.checkpoints).newest(print)
    for _ in range(2):
        one.begin(checkpoint, 1, 1000)
        assert not one.due(10**6), "one at a time"
        os.kill(one._playing.child.pid, signal.SIGKILL)
        wait(one)
        assert one.due(10**6)
    assert seen.recorded == []
    assert len(seen.notes) == 1, "said once"
    assert re.search(r"member 1 .*SIGKILL", seen.notes[0])


@pytest.mark.long
def test_nobody_plays_without_an_objective_or_weights(run):
    one, _ = made()
    checkpoint = Checkpoints(run.paths.checkpoints).newest(print)
    for nobody in (None, 5):
        one.begin(checkpoint, nobody, 1000)
        assert one._playing is None


@pytest.mark.long
def test_the_end_of_a_run_waits_only_while_it_may(run):
    one, seen = made()
    checkpoint = Checkpoints(run.paths.checkpoints).newest(print)
    one.begin(checkpoint, 0, 1000)
    process = one._playing.child.pid
    one.finish(lambda: False)
    assert f"{checkpoint.frames:,} frames" in seen.notes[0]
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_clip_is_small_and_as_fast_as_the_game():
    file, pictures = io.BytesIO(), (np.full((400, 300, 3), n % 251, np.uint8) for n in itertools.count())
    camera = SimpleNamespace(frames_per_second=60.0, shoot=lambda *_: next(pictures))
    clip = Clip(file, camera)
    for _ in range(60 * 40):
        clip.take(SimpleNamespace(episode_done=[False]), None)
    clip.close()
    with Image.open(file) as shown:
        assert shown.format == "GIF"
        assert shown.size == (150, CLIP_SIZE)
        milliseconds = 0.0
        for frame in range(shown.n_frames):
            shown.seek(frame)
            milliseconds += shown.info["duration"]
        assert 29_000 < milliseconds <= 31_000
        assert shown.info["loop"] == 0
    empty = io.BytesIO()
    Clip(empty, camera).close()
    assert empty.getvalue() == b""


def resolve(env, **options):
    return ResolvedRun.resolve(Config(env=env, num_policies=2, devices="cpu", **options), Machine(2, 0))


def test_a_film_that_cannot_be_is_one_clear_error(monkeypatch):
    film = {"evaluate_every_frames": 9, "evaluate_video": True}
    with pytest.raises(ConfigError, match=r"toy/identity.* pictures"):
        resolve("toy/identity", **film)
    monkeypatch.setattr("pbt_rl.play.film.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pbt-rl\[video\]"):
        resolve("gym/CartPole-v1", **film)


def test_evaluations_need_opponents():
    with pytest.raises(ConfigError, match=r"evaluate-every-frames 9 .*opponents"):
        check(Config(env="x/y", evaluate_every_frames=9), replace(SPEC, agents=2), None)


def test_results_that_were_recorded_late_are_kept_if_they_belong_before_the_checkpoint(tmp_path):
    journal = tmp_path / "journal.jsonl"
    facts = {"time": 1.0, "frames": 400, "all_frames": 9, "member": 1, "generation": 0}
    facts |= {"mean": 2.0, "spread": 1.0, "episodes": 4, "seconds": 3.0}
    before = json.dumps({"event": "evaluation", "at_frames": 100, **facts}) + "\n"
    after = [{"event": "evaluation", "at_frames": frames, **facts} for frames in (200, 300, 400)]
    lines = [*after, {"event": "evaluation"}, {"event": "progress"}, 3]
    texts = ["[" * 100_000, *map(json.dumps, lines), '{"event": "evalu']
    journal.write_text(before + "\n".join(texts))
    late = recorded_late(journal, len(before), 300)
    assert [(one.frames, one.mean, one.episodes) for one in late] == [(200, 2.0, 4), (300, 2.0, 4)]
