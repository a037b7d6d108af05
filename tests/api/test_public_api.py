"""The names of `pbt_rl`: cheap to import, documented, and enough to train and play."""

import inspect
import json
import re
from pathlib import Path

import pytest

import pbt_rl
from pbt_rl.api.train import make_config
from pbt_rl.config import Config, LearnerConfig
from pbt_rl.errors import ConfigError
from tests.helpers.runs import python

SMALL = {
    "num_policies": 2,
    "mode": "serial",
    "devices": "cpu",
    "actors": 1,
    "figures": False,
    "train_for_frames": 200,
}


def test_importing_the_package_imports_next_to_nothing(tmp_path):
    seen = "print(sorted({'torch', 'tyro', 'numpy', 'gymnasium'} & sys.modules.keys()))\n"
    assert python(f"import sys, pbt_rl; pbt_rl.__version__; {seen}", tmp_path) == "[]\n"
    assert "torch" not in python(
        f"import sys, pbt_rl; pbt_rl.tune.run, pbt_rl.train, pbt_rl.EnvSpec; {seen}", tmp_path
    )


@pytest.mark.parametrize("name", pbt_rl.__all__)
def test_a_name_can_be_imported_alone_and_starts_nothing(name, tmp_path):
    code = (
        f"from pbt_rl import {name}; import threading, psutil\n"
        "print(len(psutil.Process().children()), threading.active_count())\n"
    )
    assert python(code, tmp_path) == "0 1\n"
    assert list(tmp_path.iterdir()) == []
    assert inspect.getdoc(getattr(pbt_rl, name))
    assert name in pbt_rl.__doc__
    assert name in dir(pbt_rl)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        pbt_rl.trian  # noqa: B018


def test_train_and_play(tmp_path):
    result = pbt_rl.train(env="toy/identity", out=tmp_path, **SMALL)
    assert result.folder.parent == tmp_path
    assert result.folder.name.startswith("toy-identity-")
    assert result.summary == json.loads((result.folder / "summary.json").read_text())
    assert result.summary["ended"] == "frames"
    policy = pbt_rl.load_policy(result.folder, greedy=True)
    assert isinstance(policy, pbt_rl.Policy)


def test_a_config_is_used_as_it_is(tmp_path):
    result = pbt_rl.train(Config(env="toy/identity", out=tmp_path, name="x", **SMALL))
    assert result.folder == tmp_path / "x"
    with pytest.raises(ConfigError, match="not both: seed"):
        pbt_rl.train(Config(env="toy/identity"), seed=1)


def test_options_lie_over_the_recipe_as_on_the_command_line():
    recipe = make_config(env="gym/CartPole-v1")
    assert (recipe.learner.epochs, recipe.model.encoder) == (4, "mlp")
    nested = make_config(env="gym/CartPole-v1", learner={"batch": 512}, seed=3)
    assert (nested.learner.epochs, nested.learner.batch, nested.seed) == (4, 512, 3)
    assert make_config(env="gym/CartPole-v1", **{"learner.batch": 512}, seed=3) == nested
    assert make_config(env="gym/CartPole-v1", learner=LearnerConfig(batch=512)).learner == LearnerConfig(
        batch=512
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "env is missing"),
        ({"env": "toy/identity", "resident": 2}, "resident is no option"),
        ({"env": "toy/identity", "learner.bacth": 2}, r"learner\.bacth is no option"),
        ({"env": "toy/identity", "learner": {"rollout": 0}}, r"--learner\.rollout 0 cannot be used"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(ConfigError, match=message):
        make_config(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "asynk"}, "mode='asynk' cannot be used: give one of async, sync, serial"),
        ({"num_policies": "4"}, "num_policies='4' cannot be used: give a whole number"),
        ({"num_policies": 2.5}, "num_policies=2.5 cannot be used: give a whole number"),
        (
            {"learner": {"lr_schedule": "nope"}},
            "learner.lr_schedule='nope' cannot be used: give one of constant",
        ),
        ({"hypers": {"gamma": None}}, "hypers.gamma=None cannot be used: give a finite number"),
        ({"learner": 3}, "learner=3 cannot be used: give its options by name"),
        ({"name": 3}, "name=3 cannot be used: give a text"),
        ({"pbt": {"factors": 1.2}}, "pbt.factors=1.2 cannot be used: give several"),
        ({"figures": 1}, "figures=1 cannot be used: give true or false"),
        (
            {"pbt": {"tune": "gamma"}},
            """pbt.tune='gamma' cannot be used: give several texts, such as ["a", "b"]""",
        ),
        ({"hypers": {"lr": 1}}, "hypers.lr is no option: write hypers.learning_rate"),
        ({"env_option": {"seed": object}}, "env_option cannot hold <class 'object'>: give numbers"),
    ],
)
def test_a_value_of_another_type_is_one_clear_error(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config(env="toy/identity", **options)


@pytest.mark.parametrize("env", [lambda: None, dict])
def test_an_environment_is_named_and_not_passed(env):
    with pytest.raises(ConfigError, match="cannot be used: name it, as family/name or module:factory"):
        make_config(env=env)


def test_train_takes_no_name_by_position():
    with pytest.raises(ConfigError, match=r"options by name, such as env='toy/identity'"):
        pbt_rl.train("toy/identity")


def test_keywords_of_an_environment_are_a_mapping_too():
    named = {"is_slippery": False, "map_name": "8x8", "desc": None}
    typed = ("is_slippery=false", "map_name=8x8", "desc=null")
    assert make_config(env="gym/FrozenLake-v1", env_option=named).env_option == typed
    assert make_config(env="gym/FrozenLake-v1", env_option=list(typed)).env_options.keywords == named


def test_values_take_the_types_of_their_options():
    config = make_config(
        env="toy/identity", out="there", pbt={"factors": [2, 0.5]}, train_for_seconds=3, name=None
    )
    assert (config.out, config.pbt.factors, config.train_for_seconds) == (Path("there"), (2.0, 0.5), 3.0)
