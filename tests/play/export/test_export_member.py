"""`pbt-rl export`: the files of a member act as the member does, and the card says what it is."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from torch import nn

from pbt_rl.cli import evaluate as command
from pbt_rl.config import Config, LearnerConfig, ModelConfig
from pbt_rl.envs.base import ActionSpec, default_shaping_source, private_step_arrays
from pbt_rl.envs.lookup import EnvOptions, evaluation_options, make_vector_env
from pbt_rl.errors import ConfigError
from pbt_rl.play.evaluate import evaluate
from pbt_rl.play.export import formats
from pbt_rl.play.export.export_member import export_member
from pbt_rl.play.export.formats import KEY, check_same
from pbt_rl.play.export.net import Port, exported_policy
from pbt_rl.play.member import evaluation_spec
from pbt_rl.play.policy import load_policy
from pbt_rl.record.saved import Source, read_config
from tests.helpers.saved import saved_run

MLP = ModelConfig(encoder="mlp", hidden=8, layers=1)
BENT = replace(MLP, action_bounds="tanh", action_std="state", critic="separate")
EXACT = LearnerConfig(precision="float32")
STEPS = 25


def run_of(folder, env, model, learner=EXACT):
    return saved_run(folder / "run", Config(env=env, num_policies=1, model=model, learner=learner))


def network_of(run):
    """The function that is written into files, and that each of them is compared with."""
    config = read_config(run)
    return exported_policy(config, evaluation_spec(config)[0], load_policy(run, trust=True)._pack)


def episode(run, act, recurrent):
    """Compare a file with `load_policy` in an episode: act(inputs) -> (action, next state)."""
    policy = load_policy(run, greedy=True)
    env = policy.spec.env_id
    vector_env = make_vector_env(
        env, 1, 3, evaluation_options(env, EnvOptions()), default_shaping_source(policy.spec)
    )
    out, memory, state, stack = private_step_arrays(vector_env.spec, 1), None, None, {}
    vector_env.reset(out)
    taken = set()
    for _ in range(STEPS):
        obs = {name: x.copy() for name, x in out.obs.items()}
        expected, memory = policy.act(obs, out.first.copy(), memory)
        if out.first[0]:
            state = np.zeros((1, policy._pack.state_size), np.float32)
        if policy.spec.frame_stack > 1:
            newest = obs["obs"][:, None]
            before = newest.repeat(4, 1) if out.first[0] else stack["obs"]
            stack["obs"] = np.concatenate([before[:, 1:], newest], 1)
            obs = stack
        action, state = act({**obs, "state_in": state} if recurrent else obs)
        np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-4)
        taken.add(action.tobytes())
        vector_env.step(expected, out)
    vector_env.close()
    return len(taken)


def test_onnx_acts_as_the_member_on_stacked_frames_with_recurrent_state(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason='needs pip install "pbt-rl[export]"')
    pytest.importorskip("onnxscript", reason='needs pip install "pbt-rl[export]"')
    model = ModelConfig(encoder="nature", hidden=16, core="lstm", core_size=8)
    run = run_of(tmp_path, "atari/qbert", model)  # a fresh network answers its pictures with several actions
    path, _ = export_member(Source(run), "onnx", episodes=0)
    session = onnxruntime.InferenceSession(path)

    def act(inputs):
        action, _, _, state = session.run(None, inputs)
        return action, state

    assert episode(run, act, recurrent=True) > 1
    assert [i.name for i in session.get_inputs()] == ["obs", "state_in"]
    described = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
    assert described["inputs"][0] == {"name": "obs", "shape": ["N", 4, 84, 84], "dtype": "uint8", "frames": 4}


@pytest.mark.long
def test_onnx_acts_as_the_member_with_actions_of_two_kinds(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason='needs pip install "pbt-rl[export]"')
    pytest.importorskip("onnxscript", reason='needs pip install "pbt-rl[export]"')
    run = run_of(tmp_path, "toy/hybrid", MLP)
    path, card = export_member(Source(run), "onnx", episodes=0)
    session = onnxruntime.InferenceSession(path)
    assert episode(run, lambda inputs: (session.run(None, inputs)[0], None), recurrent=False) > 1
    assert "float32 [N, 2]:" in card.read_text()


@pytest.mark.parametrize(
    ("env", "model", "learner", "recurrent"),
    [
        ("gym/CartPole-v1", MLP, LearnerConfig(precision="float32", normalize_observations=True), False),
        ("gym/Pendulum-v1", MLP, EXACT, False),
        ("toy/masked", MLP, EXACT, False),
        ("toy/hybrid", MLP, EXACT, False),
        ("gym/Pendulum-v1", BENT, EXACT, False),
        ("toy/hybrid", replace(BENT, core="gru", core_size=8, core_layers=2), EXACT, True),
        ("toy/memory?delay=9", ModelConfig("mlp", 8, 1, core="gru", core_size=8), EXACT, True),
    ],
)
def test_the_exported_network_acts_as_the_member(tmp_path, env, model, learner, recurrent):
    run = run_of(tmp_path, env, model, learner)
    policy = network_of(run)

    def act(inputs):
        action, _, _, *state = policy(*map(torch.from_numpy, inputs.values()))
        return action.numpy(), state[0].numpy() if recurrent else None

    assert episode(run, act, recurrent)


class Tied(nn.Module):
    """An encoder with a buffer, and with one weight in two places."""

    def __init__(self, shapes):
        super().__init__()
        self.register_buffer("scale", torch.arange(4.0))
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, obs):
        return self.other(torch.tanh(self.one(obs["obs"] * self.scale)))


def test_a_network_with_buffers_and_tied_weights_is_exported(tmp_path):
    run = run_of(tmp_path, "gym/CartPole-v1", ModelConfig(f"{__name__}:Tied"))
    path, _ = export_member(Source(run), "safetensors", episodes=0, trust=True)
    pack = load_policy(run, trust=True)._pack
    weights = {f"net.{name}": x for name, x in pack.named_weights(0).items()}
    with safe_open(path, "pt") as file:
        assert all(torch.equal(file.get_tensor(name), x) for name, x in weights.items())
    obs = torch.randn(5, 4)
    params, value, _ = pack.act({"obs": obs[None]}, torch.zeros(1, 5, 0), torch.zeros(1, 5, dtype=torch.bool))
    torch.testing.assert_close(network_of(run)(obs)[1:], (params[0], value[0]))


def test_normalisers_and_the_scale_of_returns_are_inside(tmp_path):
    learner = LearnerConfig(precision="float32", normalize_observations=True, normalize_returns=True)
    run = run_of(tmp_path, "gym/CartPole-v1", MLP, learner)
    policy = network_of(run)
    policy.statistic_0.fill_(4.0)  # the mean square of returns
    assert load_policy(run)._pack.state["return_square"].tolist() == [1.0]
    obs = torch.randn(5, 4)
    plain = network_of(run)(obs)
    assert torch.allclose(policy(obs)[2], 2 * plain[2])
    names = [name for name, _ in policy.named_buffers()]
    assert sum(name.startswith("statistic_") for name in names) == 4


def test_safetensors_hold_the_weights_by_name(tmp_path):
    run = run_of(tmp_path, "gym/CartPole-v1", MLP)
    path, _ = export_member(Source(run), "safetensors", episodes=0)
    weights = load_policy(run)._pack.named_weights(0)
    with safe_open(path, "pt") as file:
        assert {n for n in file.keys() if n.startswith("net.")} == {f"net.{n}" for n in weights}  # noqa: SIM118
        assert all(torch.equal(file.get_tensor(f"net.{n}"), x) for n, x in weights.items())
        assert json.loads(file.metadata()[KEY])["action"]["nvec"] == [2]


def test_the_card_has_the_score_of_an_evaluation(tmp_path, capsys):
    run = run_of(tmp_path, "gym/CartPole-v1", MLP)
    arguments = [str(run), "--format", "safetensors", "--episodes", "3", "--seed", "5"]
    assert command.run_export([*arguments, "--out", str(tmp_path / "there")]) == 0
    files = [str(tmp_path / "there" / name) for name in ("policy.safetensors", "README.md")]
    assert capsys.readouterr().out.split() == files
    evaluate(Source(run), 3, None, 5, greedy=False)
    mean = capsys.readouterr().out.split("mean ")[1].split(",")[0]
    header, text = (tmp_path / "there" / "README.md").read_text().split("---\n", 2)[1:]
    content = yaml.safe_load(header)
    (result,) = content["model-index"][0]["results"]
    assert result["metrics"][0]["value"].startswith(f"{float(mean):.2f} +/- ")
    assert result["dataset"]["type"] == "gym/CartPole-v1"
    assert content["library_name"] == "pbt_rl"
    assert {"safetensors", "reinforcement-learning"} <= set(content["tags"])
    assert "| gamma | 0.5 |" in text
    assert "`obs` | float32 | [N, 4]" in text
    assert "Lineage" not in text, "a run without a journal"


def test_the_card_says_how_the_environment_is_played(tmp_path):
    small = ModelConfig(encoder="nature", hidden=8)
    _, card = export_member(Source(run_of(tmp_path, "atari/breakout", small)), "safetensors", episodes=0)
    text = card.read_text()
    assert "`ale_py.vector_env.AtariVectorEnv('breakout', N, " in text
    assert "FIRE (1)" in text
    options = ("sutton_barto_reward=true",)
    config = Config(env="gym/CartPole-v1", env_option=options, model=MLP, num_policies=1)
    pole = Source(saved_run(tmp_path / "pole", config))
    _, card = export_member(pole, "safetensors", episodes=0, trust=True)
    text = card.read_text()
    assert "`sutton_barto_reward=True`" in text
    assert "`low` of an integer `Box`" in text
    assert "order of the action space" not in text, "one component"
    (tmp_path / "hybrid").mkdir()
    _, card = export_member(Source(run_of(tmp_path / "hybrid", "toy/hybrid", MLP)), "safetensors", episodes=0)
    assert "order of the action space" in card.read_text()


def test_what_cannot_be_exported_is_one_clear_error(tmp_path, monkeypatch):
    run = run_of(tmp_path, "gym/CartPole-v1", MLP)
    with pytest.raises(ConfigError, match="member 7"):
        export_member(Source(run, member="7"), "onnx")
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pbt-rl\[export\]"):
        export_member(Source(run), "onnx")


def test_a_file_that_computes_something_else_is_not_left(tmp_path):
    run = run_of(tmp_path, "gym/CartPole-v1", MLP)
    path, _ = export_member(Source(run), "safetensors", episodes=0)
    policy = network_of(run)

    class Other:
        inputs, outputs = (Port("obs", (4,), "float32"),), ("action", "params", "value")

        def __call__(self, *arrays):
            action, params, value = policy(*arrays)
            return action, params, value + 0.01

    with pytest.raises(ConfigError, match="value "):
        check_same(Other(), lambda arrays: [x.numpy() for x in policy(*arrays)], path)
    assert not path.exists()


class Choosing(torch.nn.Module):
    """Goes one way or the other with its numbers, which no fixed graph can hold."""

    inputs, outputs = (Port("obs", (4,), "float32"),), ("action", "params", "value")
    action = ActionSpec(nvec=(4,))

    def forward(self, x):
        y = x * 2 if float(x.sum()) > 0 else torch.stack([x[i] for i in range(len(x))])
        return y.argmax(1, keepdim=True), y, y.sum(1)


def test_a_network_that_onnx_cannot_hold_is_one_clear_error(tmp_path):
    path = tmp_path / "policy.onnx"
    with pytest.raises(ConfigError, match=r"policy\.onnx") as error:
        formats.write_onnx(Choosing(), path)
    assert "\n" not in str(error.value)
    assert not path.exists()
