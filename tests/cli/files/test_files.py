import json
import tomllib

import pytest

from pbt_rl.cli.files import checked, read_config, written
from pbt_rl.cli.python import make_config
from pbt_rl.cli.train import parse_train
from pbt_rl.controllers.registry import build_exploit
from pbt_rl.envs.registry import keywords
from pbt_rl.record.folder import to_json

ODD = {
    "env": "toy/identity",
    "name": "a",
    "out": 'quo"te\\ é \x7f\n',
    "learner": {"batch": 512, "lr_schedule_kl": 1e-9},
    "pbt": {"tune": ["learning_rate=1e-5:1e-2"], "factors": [2.0, 0.5], "enabled": False},
    "hypers": {"learning_rate": 1e-06, "clip_value": 1e9},
}


def file(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_a_text_for_an_environment_stays_a_text_though_it_looks_like_a_number():
    named = {"a": "1", "b": "true", "c": "null", "d": '"x"', "e": "8x8", "f": 1, "g": "1e3", "h": [1, "2"]}
    assert keywords(checked({"env_option": named})["env_option"]) == named
    of_a_file = checked({"env_option": named | {"i": "5M", "j": "None"}}, texts=True)
    assert keywords(of_a_file["env_option"]) == named | {"i": "5M", "j": "None"}


@pytest.mark.parametrize("form", ["json", "toml", "yaml"])
def test_a_config_that_was_written_is_read_back(tmp_path, form):
    for config in (make_config(**ODD), make_config(env="atari/pong")):
        path = file(tmp_path, f"c.{form}", written(to_json(config), form))
        assert make_config(**read_config(path)) == config
        assert parse_train(["--config", str(path)])[0] == config


TOML = """
env = "gym/CartPole-v1"
train-for-frames = "1M"
[learner]
batch = 512
[hypers]
clip_value = "off"
"""
YAML = """
env: gym/CartPole-v1
train_for_frames: 1e6
learner: {batch: 512}
hypers.clip-value: off
"""


@pytest.mark.parametrize(("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.YML", YAML)])
def test_a_file_lies_over_the_recipes_and_the_command_line_over_it(tmp_path, name, text):
    path = file(tmp_path, name, text)
    config, _ = parse_train([f"--config={path}", "--learner.epochs", "7"])
    assert (config.env, config.train_for_frames, config.learner.batch) == ("gym/CartPole-v1", 10**6, 512)
    assert config.hypers.clip_value == 1e9
    assert (config.learner.epochs, config.learner.minibatches) == (7, 4)  # the user's, the recipe's
    other, _ = parse_train([f"--config={path}", "--env=toy/identity", "--learner.batch=64"])
    assert (other.env, other.learner.batch, other.learner.minibatches) == ("toy/identity", 64, 2)


def test_what_is_typed_wins_over_repeated_options_too(tmp_path):
    text = "env: gym/CartPole-v1\nenv_option: [max_episode_steps=5, render_mode=null]\n"
    text += "pbt: {exploit: sigma-gap, exploit_option: [sigmas=0.4]}\n"
    path = file(tmp_path, "a.yaml", text)
    typed = ["--env-option", "max_episode_steps=7", "--pbt.exploit-option", "sigmas=0.7"]
    config, _ = parse_train([f"--config={path}", *typed])
    assert config.env_options.keywords == {"max_episode_steps": 7, "render_mode": None}
    assert build_exploit(config.pbt).sigmas == 0.7


def test_what_is_none_is_left_out_of_toml():
    text = written(to_json(make_config(env="toy/identity")), "toml")
    assert "name" not in tomllib.loads(text)
    assert json.loads(written({"a": None, "b": {"c": None, "d": (1,)}}, "json")) == {"b": {"d": [1]}}
