"""The names of `pbt_rl`: cheap to import, documented, and enough to train and play."""

import inspect
import json
import re
from argparse import Namespace
from collections import UserDict
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest

import pbt_rl
from pbt_rl.config import Config, LearnerConfig
from pbt_rl.config.command import make_config
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.options.files import checked
from tests.helpers.runs import python

FEW = {"num_policies": 2, "mode": "serial", "devices": "cpu", "actors": 1, "figures": False}
SMALL = FEW | {"train_for_frames": 200}


def test_importing_the_package_imports_next_to_nothing(tmp_path):
    seen = "print(sorted({'torch', 'numpy', 'gymnasium'} & sys.modules.keys()))\n"
    assert python(f"import sys, pbt_rl; pbt_rl.__version__; {seen}", tmp_path) == "[]\n"
    used = f"import sys, pbt_rl; pbt_rl.tune.run, pbt_rl.train, pbt_rl.EnvSpec; {seen}"
    assert "torch" not in python(used, tmp_path)
    with pytest.raises(AttributeError, match="'trian'"):
        pbt_rl.trian  # noqa: B018


@pytest.mark.parametrize("name", pbt_rl.__all__)
def test_a_name_can_be_imported_alone_and_starts_nothing(name, tmp_path):
    count = "print(len(psutil.Process().children()), threading.active_count())"
    code = f"from pbt_rl import {name}; import threading, psutil; {count}"
    assert python(code, tmp_path) == "0 1\n"
    assert list(tmp_path.iterdir()) == []
    assert inspect.getdoc(getattr(pbt_rl, name))
    assert name in pbt_rl.__doc__
    assert name in dir(pbt_rl)


def test_train_and_play_with_options_or_with_a_config(tmp_path):
    result = pbt_rl.train(env="toy/identity", out=tmp_path, **SMALL)
    assert result.folder.parent == tmp_path
    assert result.folder.name.startswith("toy-identity-")
    assert result.summary == json.loads((result.folder / "summary.json").read_text())
    assert result.summary["ended"] == "frames"
    policy = pbt_rl.load_policy(result.folder, greedy=True)
    assert isinstance(policy, pbt_rl.Policy)
    result = pbt_rl.train(Config(env="toy/identity", out=tmp_path, name="x", **SMALL))
    assert result.folder == tmp_path / "x"
    with pytest.raises(ConfigError, match=": seed"):
        pbt_rl.train(Config(env="toy/identity"), seed=1)


def test_options_lie_over_the_recipe_as_on_the_command_line():
    recipe = make_config(env="gym/CartPole-v1")
    assert (recipe.learner.epochs, recipe.model.encoder) == (4, "mlp")
    nested = make_config(env="gym/CartPole-v1", learner={"batch": 512}, seed=3)
    assert (nested.learner.epochs, nested.learner.batch, nested.seed) == (4, 512, 3)
    assert make_config(env="gym/CartPole-v1", **{"learner.batch": 512}, seed=3) == nested
    whole = LearnerConfig(batch=512)
    assert make_config(env="gym/CartPole-v1", learner=whole).learner == whole
    as_texts = make_config(
        env="gym/CartPole-v1", train_for_seconds="30m", train_for_frames="5M", num_policies="4"
    )
    assert (as_texts.train_for_seconds, as_texts.train_for_frames, as_texts.num_policies) == (
        1800,
        5_000_000,
        4,
    )


class Kind(Enum):
    APPO = "appo"


class Listed(Sequence):
    """A list of another library."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.items[at]


class Configured:
    """A group of options of ml_collections; pydantic's is alike."""

    def to_dict(self):
        return {"batch": 512}


@pytest.mark.parametrize(
    "group", [Namespace(batch=512), SimpleNamespace(batch=512), Configured(), UserDict(batch=512)]
)
def test_groups_of_options_may_be_of_other_libraries(group):
    assert make_config(env="toy/identity", learner=group).learner.batch == 512


@pytest.mark.parametrize(
    "names", [Listed("gamma", "learning_rate"), {"learning_rate", "gamma"}, iter(["gamma", "learning_rate"])]
)
def test_lists_may_be_of_other_libraries(names):
    assert make_config(env="toy/identity", pbt={"tune": names}).pbt.tune == ("gamma", "learning_rate")
    own = {"sizes": Listed(1, 2), "at": Path("x"), "kind": Kind.APPO}
    assert checked({"env_option": own}, table(Config)) == {
        "env_option": ("sizes=[1, 2]", 'at="x"', 'kind="appo"')
    }
    assert make_config(env="toy/identity", algo=Kind.APPO).algo == "appo"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resident": 2}, "resident"),
        ({"learner": {"rollout": 0}}, "--learner.rollout 0 "),
        ({"mode": "asynk"}, "mode='asynk' "),
        ({"num_policies": "four"}, "num_policies='four' "),
        ({"hypers": {"gamma": None}}, "hypers.gamma=None "),
        ({"learner": 3}, "learner=3 "),
        ({"pbt": {"factors": {"a": 1.2}}}, "pbt.factors="),
        ({"pbt": {"tune": "gamma"}}, "pbt.tune='gamma' "),
        ({"hypers": {"lr": 1}}, "hypers.lr. Write hypers.learning_rate"),
        ({"env_option": {"seed": object}}, "<class 'object'>"),
        ({"env": dict}, "env=<class 'dict'>"),
    ],
)
def test_an_option_that_cannot_be_used_is_one_clear_error(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config(**{"env": "toy/identity"} | options)


def test_a_config_derives_nothing_from_hours_but_reads_a_file_of_start_values(tmp_path):
    config = make_config(
        env="toy/identity", mode="serial", num_policies=2, train_for_frames=200, out=tmp_path
    )
    with pytest.raises(ConfigError, match=r"hours=2 .*train_for_seconds=0"):
        pbt_rl.train(replace(config, hours=2))
    (tmp_path / "x.csv").write_text("learning_rate\n0.001\n0.002\n")
    starts = replace(config.pbt, start_values=(str(tmp_path / "x.csv"),), enabled=False)
    result = pbt_rl.train(replace(config, pbt=starts, final_episodes=0))
    assert [member.hypers["learning_rate"] for member in result.members] == [0.001, 0.002]


def test_train_takes_no_name_by_position():
    with pytest.raises(ConfigError, match="env='toy/identity'"):
        pbt_rl.train("toy/identity")
    with pytest.raises(ConfigError, match=r"^--env "):
        make_config()


def test_keywords_of_an_environment_are_a_mapping_too():
    named = {"is_slippery": False, "map_name": "8x8", "desc": None}
    typed = ("is_slippery=false", "map_name=8x8", "desc=null")
    assert make_config(env="gym/FrozenLake-v1", env_option=named).env_option == typed
    assert make_config(env="gym/FrozenLake-v1", env_option=list(typed)).env_options.keywords == named
    given = {"out": "there", "pbt": {"factors": [2, 0.5]}, "train_for_seconds": 3, "name": None}
    config = make_config(env="toy/identity", **given)
    assert (config.out, config.pbt.factors, config.train_for_seconds) == (Path("there"), (2.0, 0.5), 3.0)
