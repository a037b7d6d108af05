"""Evaluation: a saved member acts as in training, every row plays its share, bad input is one clear error."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pbt_rl.config import Config, LearnerConfig, ModelConfig
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.envs.atari import AtariOptions
from pbt_rl.envs.base import ActionSpec, ArraySpec, EnvSpec, default_shaping_source, private_step_arrays
from pbt_rl.envs.lookup import EnvOptions, make_vector_env, probe
from pbt_rl.errors import ConfigError, EnvSetupError
from pbt_rl.learner.build import build_net, build_pack
from pbt_rl.plan import PackPlan
from pbt_rl.play import evaluate as module
from pbt_rl.play.evaluate import evaluate
from pbt_rl.play.member import Player, Policy, Progress, load_pack, play, shares, shares_of_tasks
from pbt_rl.record.checkpoints import Checkpoints
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.saved import SavedPolicy, Source, find_saved, read_config
from tests.helpers.saved import save, write_run

PLAYED = module.PlayedEpisode(1.0, 5)
MLP = ModelConfig(encoder="mlp", hidden=8, layers=1)
VECTOR = EnvSpec("toy/vector", {"obs": ArraySpec((3,), "float32")}, ActionSpec(nvec=(4,)))


def trained_pack(config, spec, seed=5, members=(0, 1, 2)):
    plan = PackPlan("cpu", members, 1, 1, 1, 1, 1, len(members))
    values = {name: hyper.default for name, hyper in hyper_table(config.hypers).items()}
    return build_pack(config, spec, plan, [values] * len(members), seed)


@pytest.fixture
def run(tmp_path):
    """A run on the identity toy that saved its member 1, the best."""
    config = Config(env="toy/identity?length=5", num_policies=3, model=MLP)
    folder = write_run(tmp_path / "run", config)
    pack = trained_pack(config, probe(config.env, EnvOptions()))
    save(folder, pack, {1: 1}, best=1)
    return folder


def player_of(config, spec=VECTOR):
    return Player(Policy(trained_pack(config, spec, members=(0,)), spec, MLP, 0, greedy=False))


def scores(text):
    lines = [line for line in text.splitlines() if line.startswith("episode")]
    return [float(line.split("objective ")[1].split(",")[0]) for line in lines]


def test_prints_every_episode_and_their_mean(run, capsys):
    evaluate(Source(run), 5, None, 3, greedy=False)
    text = capsys.readouterr().out
    played = scores(text)
    assert len(played) == 5
    assert re.match(rf"member 1 of {run} at 1,000 frames: 5 .*\btoy/identity\?length=5, sampled", text)
    assert f"mean {np.mean(played):.6g}, std {np.std(played):.6g}, min {min(played):g}" in text
    evaluate(Source(run, member="1"), 5, None, 3, greedy=False)
    assert scores(capsys.readouterr().out) == played, "the seed decides"
    evaluate(Source(run, member="1"), 5, None, 4, greedy=False)
    assert scores(capsys.readouterr().out) != played


def test_it_computes_with_one_thread_and_leaves_the_caller_its_own(run, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    note = lambda *_, **__: seen.append(torch.get_num_threads()) or [PLAYED]  # noqa: E731
    monkeypatch.setattr(module, "play_episodes", note)
    try:
        evaluate(Source(run), 1, None, 3, greedy=False)
        assert (seen, torch.get_num_threads()) == ([1], 2)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        evaluate(Source(run), 1, None, 3, greedy=False)
        assert seen == [1, 2], "the user's choice"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [(True, r"\r3 .*\b10 .*\b14 s .*\x1b\[K\r\x1b\[K"), (False, r"3 .*\b10 .*\b14 s .*\n")],
)
def test_progress_is_one_line_of_a_terminal_or_lines_of_a_log(terminal, shown, monkeypatch):
    monkeypatch.setattr("pbt_rl.play.member.EVERY_SECONDS", 0.0)
    monkeypatch.setattr("pbt_rl.play.member.EVERY_SECONDS_IN_A_LOG", 0.0)
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    progress = Progress(stream)
    progress._began -= 6.0  # an episode has taken two seconds
    progress.show(3, 10)
    progress.end()
    assert re.fullmatch(shown, stream.getvalue())


def test_a_perfect_policy_gets_the_full_objective(run, capsys):
    config = read_config(run)
    spec = probe(config.env, EnvOptions())
    pack = trained_pack(config, spec)
    net = build_net(spec, config.model)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        encoder = next(m for m in net.modules() if isinstance(m, torch.nn.Linear))
        encoder.weight[:4, :4] = torch.eye(4)
        net.heads.policy.weight[:4, :4] = torch.eye(4)
    pack.set_fresh(1, net)
    save(run, pack, {1: 1}, best=1, frames=2000)
    evaluate(Source(run), 3, None, 0, greedy=True)
    assert scores(capsys.readouterr().out) == [5, 5, 5]
    evaluate(Source(run), 3, None, 0, greedy=False)
    assert scores(capsys.readouterr().out) != [5, 5, 5], "without --greedy it samples"


@pytest.mark.parametrize(
    ("member", "message"), [("2", r"member 2 .*\b1$"), ("3", r"member 3 .*\b1$"), ("²", "--member '²'")]
)
def test_a_member_that_is_not_there_is_one_clear_error(run, member, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(Source(run, member=member), 1, None, 0, greedy=False)
    with pytest.raises(ConfigError, match=r"toy/identity.* pictures"):
        evaluate(Source(run), 1, Path("film.gif"), 0, greedy=False)


@pytest.mark.parametrize(
    ("part", "option", "value", "said"),
    [
        ("model", "hidden", 9, ""),
        ("learner", "normalize_observations", True, r"(.|\n)* stats.obs_count.obs: "),
    ],
)
def test_weights_of_another_network_are_one_clear_error(run, part, option, value, said):
    data = json.loads((run / "config.json").read_text())
    data[part][option] = value
    (run / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=rf"network{said}"):
        evaluate(Source(run), 1, None, 0, greedy=False)


def test_a_damaged_run_is_one_clear_error(run):
    (RunFolder(run).checkpoints / "at_1000" / "policy_01.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ConfigError, match=r"policy_01.safetensors"):
        evaluate(Source(run), 1, None, 0, greedy=False)
    save(run, trained_pack(read_config(run), probe("toy/identity?length=5", EnvOptions())), {1: 1}, best="1")
    with pytest.raises(ConfigError, match=r"best_member .*state.json"):
        evaluate(Source(run), 1, None, 0, greedy=False)
    shutil.rmtree(RunFolder(run).checkpoints)
    with pytest.raises(ConfigError, match="weights"):
        evaluate(Source(run), 1, None, 0, greedy=False)


def test_without_a_finished_episode_best_is_member_0(run, capsys):
    spec = probe("toy/identity?length=5", EnvOptions())
    newer = save(run, trained_pack(read_config(run), spec), {0: 0, 1: 1}, best=None, frames=2000)
    assert find_saved(Source(run), print).member == 0
    (newer / "policy_01.safetensors").unlink()
    evaluate(Source(run), 1, None, 0, greedy=True)
    said = capsys.readouterr()
    assert "at_2000" in said.err
    assert said.out.startswith(f"member 1 of {run} at 1,000 frames: ")


def test_any_member_of_any_checkpoint_plays(run, capsys):
    spec = probe("toy/identity?length=5", EnvOptions())
    pack = trained_pack(read_config(run), spec, seed=6)
    save(run, pack, {0: 0, 2: 2}, best=2, frames=2000)
    sources = [(None, "best"), (2000, "0"), (1000, "best")]
    found = [find_saved(Source(run, *source), print) for source in sources]
    assert [(one.member, one.checkpoint.frames) for one in found] == [(2, 2000), (0, 2000), (1, 1000)]
    for one, weights in ((found[0], pack.named_weights(2)), (found[1], pack.named_weights(0))):
        loaded = load_pack(read_config(run), spec, one, 0).named_weights(0)
        assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    evaluate(Source(run, 2000, "0"), 1, None, 0, greedy=True)
    assert capsys.readouterr().out.startswith(f"member 0 of {run} at 2,000 frames: ")


class UnevenVectorEnv:
    """Row r plays episodes of r + 1 steps; their objective is their length. Next-step reset."""

    spec = VECTOR

    def __init__(self, rows):
        self.rows = rows
        self._length_R = np.zeros(rows, np.int64)

    def reset(self, out):
        out.first[:] = True

    def step(self, action, out):
        assert action.shape == (self.rows, 1)
        out.first[:] = out.episode_done
        self._length_R = np.where(out.first, 0, self._length_R + 1)
        out.episode_done[:] = out.terminated[:] = self._length_R == np.arange(self.rows) + 1
        out.length[:] = out.objective[:] = self._length_R

    def close(self):
        pass


def test_every_row_plays_its_share_so_short_episodes_are_not_preferred():
    assert shares(7, 3) == [3, 2, 2]
    player = player_of(Config(env="toy/identity", model=MLP))
    played = play(UnevenVectorEnv(3), player, [2, 2, 2])
    assert [episode.steps for episode in played] == [1, 1, 2, 2, 3, 3]
    assert [episode.objective for episode in played] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_error_of_the_environment_in_an_episode_is_reported_as_its_error(method, monkeypatch):
    def fail(*_):
        raise OSError("the game server is gone")

    monkeypatch.setattr(UnevenVectorEnv, method, fail)
    player = player_of(Config(env="toy/identity", model=MLP))
    with pytest.raises(EnvSetupError, match=rf"{VECTOR.env_id} .*OSError in {method}(.|\n)*server is gone"):
        play(UnevenVectorEnv(3), player, [2, 2, 2])


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 8))
def test_every_task_is_played_equally_often(episodes, tasks, rows):
    rows = min(rows, tasks)
    played = [0] * tasks
    for row, share in enumerate(shares_of_tasks(episodes, tasks, rows)):
        for number in range(share):
            played[(row * tasks // rows + number) % tasks] += 1
    assert played == [episodes] * tasks


def test_acts_as_the_network_does_on_stacked_frames_with_recurrent_state():
    """Against the network itself, with the stack and the state's resets written out slowly."""
    spec = EnvSpec("toy/image", {"obs": ArraySpec((84, 84), "uint8")}, ActionSpec(nvec=(5, 3)), frame_stack=4)
    model = ModelConfig(encoder="nature", hidden=32, core="gru", core_size=16)
    config = Config(env="toy/image", model=model, learner=LearnerConfig(precision="float32"))
    pack = trained_pack(config, spec, members=(0,))
    net = build_net(spec, config.model)
    net.load_state_dict(pack.named_weights(0))
    policy, memory = Policy(pack, spec, config.model, 0, greedy=True), None
    step = private_step_arrays(spec, 2)
    rng = np.random.default_rng(0)
    stack = np.zeros((2, 4, 84, 84), np.uint8)
    state = torch.zeros(2, net.state_size)
    for t in range(9):
        step.obs["obs"][:] = rng.integers(256, size=(2, 84, 84))
        step.first[:] = [t in (0, 6), t == 0]
        newest = step.obs["obs"][:, None]
        before = np.where(step.first[:, None, None, None], newest, stack)
        stack = np.concatenate([before[:, 1:], newest], 1)
        with torch.no_grad():
            inputs = {"obs": torch.from_numpy(stack.copy())[None]}
            params, _, state = net(inputs, state, torch.from_numpy(step.first)[None])
        expected = torch.stack([params[0, :, :5].argmax(-1), params[0, :, 5:].argmax(-1)], -1)
        action, memory = policy.act(step.obs, step.first, memory)
        assert action.tolist() == expected.tolist()
        torch.testing.assert_close(memory.recurrent_PRS[0], state)


def test_saved_normalisers_are_those_that_act(tmp_path):
    learner = LearnerConfig(normalize_observations=True, precision="float32")
    config = Config(env="toy/identity", model=MLP, learner=learner)
    trained = trained_pack(config, VECTOR)
    trained.state["obs_mean.obs"][2] = torch.tensor([100.0, -50.0, 3.0])
    trained.state["obs_var.obs"][2] = torch.tensor([4.0, 9.0, 0.25])
    trained.publish((2,))
    save(tmp_path, trained, {2: 2})
    saved = SavedPolicy(tmp_path, Checkpoints(tmp_path / "checkpoints").at(1000), 2)
    pack = load_pack(config, VECTOR, saved, 0)
    obs = torch.tensor([[101.0, -51.0, 2.5]])
    empty, first = torch.zeros(1, 1, 0), torch.ones(1, 1, dtype=torch.bool)
    alone = pack.act({"obs": obs[None]}, empty, first)[0]
    among = trained.act({"obs": obs.expand(3, 1, 3)}, empty.expand(3, 1, 0), first.expand(3, 1))[0]
    torch.testing.assert_close(alone[0], among[2])
    assert not torch.allclose(alone[0], among[1])


def test_continuous_actions_stay_within_their_bounds():
    spec = EnvSpec("toy/line", VECTOR.obs, ActionSpec(low=(-0.1, 0.0), high=(0.1, 0.2)))
    player = player_of(Config(env="toy/line", model=MLP), spec)
    step = private_step_arrays(spec, 50)
    step.first[:] = True
    actions = player.act(step)
    assert actions.dtype == np.float32
    assert actions.min(0) == pytest.approx([-0.1, 0])
    assert actions.max(0) == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(("size", "sticky"), [((84, 84), 0.0), ((84, 84), 0.25), ((210, 160), 0.0)])
def test_the_colour_twin_shows_the_game_that_is_played(size, sticky, monkeypatch):
    """At 84x84 its brightness is the grey frame that the policy sees, pixel by pixel."""
    monkeypatch.setattr("pbt_rl.envs.films.SCREEN", size)
    options = AtariOptions(episodic_life=False, repeat_action_probability=sticky)
    spec = probe("atari/breakout", EnvOptions((options,)))
    vector_env = make_vector_env("atari/breakout", 1, 4, EnvOptions((options,)), default_shaping_source(spec))
    from pbt_rl.envs.films import ColourTwin

    twin = ColourTwin("breakout", options, vector_env)
    step = private_step_arrays(spec, 1)
    rng = np.random.default_rng(0)
    vector_env.reset(step)
    pictures, games, seen = [twin.shoot(step, None)], 0, set()
    for _ in range(300):
        action = rng.integers(1, 4, size=(1, 1)).astype(np.int32)
        vector_env.step(action, step)
        games += int(step.episode_done[0])
        pictures.append(twin.shoot(step, action[0]))
        seen.add(step.obs["obs"].tobytes())
        if size == (84, 84):
            grey = pictures[-1] @ np.array([0.299, 0.587, 0.114])
            assert np.abs(grey - step.obs["obs"][0]).max() < 8
    vector_env.close()
    assert games > 0, "the next one begins alike"
    assert len(seen) > 20, "something moved"
    assert pictures[0].shape == (*size, 3)
    assert np.ptp(pictures[0], axis=-1).max() > 50, "in colour"


def test_the_film_ends_with_the_first_episode():
    from pbt_rl.play.film import Clip

    pictures = iter([np.zeros((8, 8, 3), np.uint8)] * 2)
    camera = SimpleNamespace(frames_per_second=8.0, shoot=lambda *_: next(pictures))
    player = player_of(Config(env="a/b", model=MLP))
    play(UnevenVectorEnv(2), player, [3, 3], Clip(io.BytesIO(), camera))
    assert next(pictures, None) is None, "its reset and its only step are shown"


def test_mean_and_std_have_the_same_number_of_digits(capsys):
    module._print_result([replace(PLAYED, objective=score) for score in (0.1234567, 0.4444444)])
    assert "mean 0.283951, std 0.160494," in capsys.readouterr().out
