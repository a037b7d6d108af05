"""Unknown ids: ids of packages, and suggestions in errors."""

import re

import pytest

from pbt_rl.envs import lookup, packages
from pbt_rl.envs.custom import find_factory
from pbt_rl.envs.lookup import family_of
from pbt_rl.envs.packages import named_by
from pbt_rl.errors import EnvSetupError

MEANT = {
    "SpaceInvaders-ramDeterministic-v4": "atari/space_invaders?",
    "HalfCheetah": "gym/HalfCheetah-v5?",
    "breakot": "atari/breakout?",
    "mujoco_ant": "gym/Ant-v5?",
    "toy_memory": "toy/memory?",
    "doom_basic": "vizdoom/basic?",
    "dmlab_30": "dmlab30?",
    "MyArm-v0": "gym/MODULE:MyArm-v0",
    "nothing": "atari/NAME, gym/NAME",
    "atari": "atari/NAME?",
}


@pytest.mark.parametrize("typed", MEANT)
def test_what_was_meant(typed):
    with pytest.raises(EnvSetupError, match=f"{typed!r}: .*{re.escape(MEANT[typed])}"):
        family_of(typed)


def test_an_id_may_begin_with_the_package_that_registers_it():
    assert named_by("gymnasium/CartPole-v1") == "gymnasium:CartPole-v1"
    assert named_by("no_such_package/CartPole-v1") == ""
    assert named_by("CartPole-v1") == ""


@pytest.mark.parametrize("typed", ["minatar_breakout", "minatar/breakout", "MinAtar-Breakout-v1"])
def test_an_id_of_a_known_package_that_is_missing_is_no_game_of_another_family(typed, monkeypatch):
    for module in (lookup, packages):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name == "minatar" else True)
    with pytest.raises(EnvSetupError, match=r"\bminatar,"):
        family_of(typed)


def test_a_module_that_hides_a_file_of_the_working_directory_is_named():
    with pytest.raises(EnvSetupError, match=r"'make_env' \(/.*json/__init__\.py\)"):
        find_factory("json:make_env")
    with pytest.raises(EnvSetupError, match=r"'lods'; .*loads"):
        find_factory("json:lods")


def test_what_gymnasium_lacks_is_listed_with_how_it_is_installed(monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "mujoco" else True)
    (line,) = packages.absent().splitlines()
    assert re.search(r"mujoco .*gym/Reacher-v4, .*gymnasium\[mujoco\]", line)
    monkeypatch.setattr(packages, "find_spec", lambda _name: True)
    assert packages.absent() == ""
