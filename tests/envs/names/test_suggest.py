import sys
from types import SimpleNamespace

import pytest

from pbt_rl.envs.base import EnvSetupError
from pbt_rl.envs.names import attribute, meant, named_by, packages
from pbt_rl.envs.registry import FAMILIES, family_of

module = sys.modules[meant.__module__]
MEANT = {
    "ALE/Pong-v5": "write atari/pong",
    "PongNoFrameskip-v4": "write atari/pong",
    "SpaceInvaders-ramDeterministic-v4": "write atari/space_invaders",
    "pong": "write atari/pong",
    "CartPole-v1": "write gym/CartPole-v1",
    "cartpole": "did you mean gym/CartPole-v1?",
    "HalfCheetah-v5": "write gym/HalfCheetah-v5",
    "identity": "write toy/identity",
    "breakot": "did you mean atari/breakout?",
    "my/file.py:Env": "write my.file:Env, as Python imports it from the working directory",
    "file.py": "write file:make_env, as Python imports it from the working directory",
    "/abs/file.py:Env": "write file:Env and run from the folder /abs",
    "../file.py:Env": "write file:Env and run from the folder ..",
    "nothing": "",
    "mujoco_ant": "did you mean gym/Ant-v5?",
    "mujoco/Ant": "did you mean gym/Ant-v5?",
    "Mujoco-HalfCheeta": "did you mean gym/HalfCheetah-v5?",
    "atari_breakout": "did you mean atari/breakout?",
    "atari-pong": "did you mean atari/pong?",
    "ale_pong": "did you mean atari/pong?",
    "gymnasium-cartpole": "did you mean gym/CartPole-v1?",
    "box2d_lunar_lander": "did you mean gym/LunarLander-v3?",
    "toy:memory": "did you mean toy/memory?",
    "gymnasium/CartPole-v1": "write gym/CartPole-v1",
    "MyArm-v0": "write gym/MyArm-v0, or gym/MODULE:MyArm-v0 if a module of yours registers it",
}


@pytest.mark.parametrize("typed", MEANT)
def test_what_was_meant(typed):
    assert meant(typed, FAMILIES) == MEANT[typed]


@pytest.mark.extra("envs/doom")
@pytest.mark.parametrize(
    ("typed", "written"), {"doom_basic": "basic", "doom_my_way_home": "my_way_home"}.items()
)
def test_a_word_for_the_family_may_be_another(typed, written):
    pytest.importorskip("vizdoom")
    assert meant(typed, FAMILIES) == f"did you mean vizdoom/{written}?"


@pytest.mark.extra("envs/dmlab")
def test_an_id_without_a_family_is_found_too():
    assert meant("dmlab_30", FAMILIES) == "did you mean dmlab30?"


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("arm.Arm", "arm:Arm"),
        ("arm", "arm:make_env"),
        ("pack.reach.Arm", "pack.reach:Arm"),
        ("pack.walk", "pack:walk"),
    ],
)
def test_a_module_of_the_working_directory_is_recognised(tmp_path, monkeypatch, typed, written):
    (tmp_path / "pack").mkdir()
    for name in ("arm.py", "pack/__init__.py", "pack/reach.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert meant(typed, FAMILIES) == f"write {written}, as Python imports it from the working directory"


def test_an_id_that_names_nothing_is_answered_with_the_right_one():
    with pytest.raises(
        EnvSetupError, match=r"^'ALE/Pong-v5' names no environment: write atari/pong\. `pbt-rl"
    ):
        family_of("ALE/Pong-v5")


@pytest.mark.parametrize(("typed", "hint"), {"atari-pong": "atari/pong", "atari": "atari/NAME"}.items())
def test_a_family_alone_is_named_where_nothing_nearer_is_found(typed, hint):
    with pytest.raises(EnvSetupError, match=rf"did you mean {hint}\?"):
        family_of(typed)


def test_an_id_may_begin_with_the_package_that_registers_it():
    assert named_by("gymnasium/CartPole-v1") == "gymnasium:CartPole-v1"
    assert named_by("no_such_package/CartPole-v1") == ""
    assert named_by("CartPole-v1") == ""


@pytest.mark.parametrize("typed", ["minatar_breakout", "minatar/breakout", "MinAtar-Breakout-v1"])
def test_an_id_of_a_known_package_that_is_missing_is_no_game_of_another_family(typed, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "minatar" else True)
    assert meant(typed, FAMILIES) == "minatar/NAME needs the package minatar, which is not installed"


def test_a_module_that_hides_a_file_of_the_working_directory_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = SimpleNamespace(__name__="test", __file__=str(tmp_path / "test.py"), make_env=print)
    assert attribute(own, own, "make_evn") == "did you mean make_env?"
    assert attribute(own, own, "x") == "it has make_env"
    (tmp_path / "test.py").touch()
    assert attribute(own, own, "x") == "it has make_env"
    other = SimpleNamespace(__name__="test", __file__="/lib/test/__init__.py")
    assert "it comes from /lib/test/__init__.py, which hides the file test.py" in attribute(other, other, "x")


def test_what_gymnasium_lacks_is_listed_with_how_it_is_installed(monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "mujoco" else True)
    (line,) = packages.absent().splitlines()
    assert "mujoco is missing, for gym/Reacher-v4, " in line
    assert line.endswith('; pip install "gymnasium[mujoco]"')
    monkeypatch.setattr(packages, "find_spec", lambda _name: True)
    assert packages.absent() == ""
