"""Former names of options: errors on the command line, understood in files and in saved runs."""

import re

import pytest

from pbt_rl.config import Config
from pbt_rl.config.command import parse_train
from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import table
from pbt_rl.options.files import checked
from pbt_rl.options.renamed import RENAMED, present_config
from pbt_rl.record.folder import config_from_json

OLD = {
    "env": "gym/Pendulum-v1",
    "envs_per_unit": 3,
    "units_per_actor": 1,
    "model": {"deviation": "state", "initial_deviation": [0.5, 0.25]},
    "dmlab": {"one_level_per_unit": False},
    "copy_seconds": 30.0,
}
"""A part of the config of a run of commit 6f05f0f4."""


def found(config):
    return (
        config.envs_per_vector_env,
        config.vector_envs_per_actor,
        config.model.action_std,
        config.model.initial_std,
        config.dmlab.one_level_per_vector_env,
    )


def test_a_saved_config_keeps_its_options():
    assert found(config_from_json(OLD)) == (3, 1, "state", (0.5, 0.25), False)
    assert present_config(present_config(OLD)) == present_config(OLD)
    assert "copy_seconds" not in present_config(OLD), "a report would call it a difference to a newer run"


def test_a_file_may_have_former_names():
    values = checked(OLD, table(Config))
    assert (values["envs_per_vector_env"], values["model.initial_std"]) == (3, (0.5, 0.25))
    with pytest.raises(ConfigError, match=r"copy_seconds.*save_every_seconds"):
        checked({"copy_seconds": 5.0}, table(Config))
    with pytest.raises(ConfigError, match=r"envs.*twice"):
        checked({"envs-per-unit": 3, "envs_per_vector_env": 3}, table(Config))


@pytest.mark.parametrize("old", RENAMED)
def test_the_command_line_names_the_present_option(old):
    assert RENAMED[old] in table(Config)
    with pytest.raises(ConfigError) as error:
        parse_train(["--env", "toy/identity", f"--{old}", "1"])
    assert re.search(f"--{old}\\b.* --{RENAMED[old]}$", str(error.value))


def test_a_former_switch_is_named_too():
    with pytest.raises(ConfigError, match=r" --dmlab\.one-level-per-vector-env"):
        parse_train(["--env", "toy/identity", "--dmlab.no-one-level-per-unit"])
