"""The user's own environments: import and call of factories."""

import os
import sys
from importlib.metadata import EntryPoint

import gymnasium
import numpy as np
import pytest

from pbt_rl.envs import lookup
from pbt_rl.envs.base import default_shaping_source, private_step_arrays
from pbt_rl.envs.lookup import EnvOptions, keywords, make_vector_env, probe, recipe
from pbt_rl.envs.shaping import frames_per_step
from pbt_rl.errors import EnvSetupError

MODULE = """
import gymnasium
import numpy as np
from pbt_rl.envs.toy import Identity

made = []

def make_env(size=4, name="x"):
    made.append((size, name))
    return Identity(size)

def make_level(level="none", size=3):
    env = Identity(size)
    env.frames_per_step = {"none": 1, "fast": 4}[level]
    return gymnasium.wrappers.TimeLimit(env, 9)

class Group:
    @staticmethod
    def env():
        return Identity()

class ParallelEnv:
    possible_agents = ["a", "b"]

def changing(sizes=[]):
    sizes.append(len(sizes) + 2)
    return Identity(sizes[-1])

def a_class():
    return Group


def nothing():
    return None

def fails():
    raise RuntimeError("no licence")

def fixed_vector():
    return gymnasium.vector.SyncVectorEnv([Identity] * 3)

def spaceless():
    env = Identity()
    del env.action_space
    return env

class Drawn(Identity):
    metadata = {"render_fps": 12}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return None if self.render_mode is None else np.full((4, 6, 3), 7, np.uint8)

class BadlyDrawn(Drawn):
    def render(self):
        return {}["colour"]

class AlwaysDrawn(Identity):
    def render(self):
        return np.zeros((4, 6, 4), np.uint8)

def drawn_vec(num_envs, render_mode=None):
    return gymnasium.vector.SyncVectorEnv([lambda: Drawn(render_mode)] * num_envs)

def told_nothing():
    return Drawn()

def make_vec(num_envs, size=4):
    return gymnasium.vector.SyncVectorEnv([lambda: Identity(size)] * num_envs)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "custom_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "custom_of_a_test", raising=False)


def options(*pairs):
    return EnvOptions(keywords=keywords(pairs))


def test_a_factory_of_a_module_is_called_with_the_options():
    spec = probe("custom_of_a_test:make_env", options("size=6", "name=a b"))
    assert (spec.env_id, spec.action.nvec) == ("custom_of_a_test:make_env", (6,))
    import custom_of_a_test

    vector_env = make_vector_env(
        spec.env_id, 3, 0, options("size=6", "name=a b"), default_shaping_source(spec)
    )
    assert vector_env.spec == spec
    assert custom_of_a_test.made == [(6, "a b")] * 3  # one environment per row, all of them used
    assert probe("custom_of_a_test:Group.env", EnvOptions()).action.nvec == (4,)
    assert recipe("custom_of_a_test:make_env")["model.encoder"] == "mlp"


@pytest.mark.parametrize("pairs", [["size"], ["=3"], ["two words=3"], ["a=1", "a=2"]])
def test_an_option_that_is_no_pair_is_refused(pairs):
    with pytest.raises(EnvSetupError, match=f"--env-option {pairs[-1]} "):
        keywords(pairs)


def test_options_reach_gym():
    assert lookup.make_raw("gym/FrozenLake-v1", options("map_name=8x8")).observation_space.n == 64
    with pytest.raises(EnvSetupError, match=r"gym/FrozenLake-v1 .*mapname"):
        probe("gym/FrozenLake-v1", options("mapname=8x8"))


def test_an_installed_entry_point_is_found_by_name_and_takes_a_level(monkeypatch):
    point = EntryPoint("mine", "custom_of_a_test:make_level", "pbt_rl.envs")
    monkeypatch.setattr(lookup, "entry_points", lambda group: [point] if group == point.group else [])
    assert lookup.plugins() == {"mine": point}
    assert probe("mine", EnvOptions()).frame_skip == 1
    assert probe("mine/fast", options("size=5")) == probe("mine/fast", options("size=5"))
    spec = probe("mine/fast", options("size=5"))
    assert (spec.env_id, spec.frame_skip, spec.action.nvec) == ("mine/fast", 4, (5,))


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("custom_of_a_test.py:make_env", "custom_of_a_test:make_env"),
        ("custom_of_a_test:ParallelEnv", "returned custom_of_a_test.ParallelEnv"),
        ("custom_of_a_test:fixed_vector", r"\b3 rows.*\b1 .*num_envs"),
        ("custom_of_a_test:spaceless", "action_space.*self.action_space"),
    ],
)
def test_unusable_environments_are_reported_with_a_remedy(env_id, message):
    with pytest.raises(EnvSetupError, match=message):
        probe(env_id, EnvOptions())


def test_what_a_factory_gives_that_cannot_be_used():
    with pytest.raises(EnvSetupError, match=r"'sice'.*: size=4, name"):
        probe("custom_of_a_test:make_env", options("sice=3"))
    with pytest.raises(EnvSetupError, match=r"differ .*spaces"):
        make_vector_env("custom_of_a_test:changing", 2, 0, EnvOptions(), lambda _row: (0, {}))


def test_exceptions_of_the_factory_or_its_module_are_shown(tmp_path):
    with pytest.raises(EnvSetupError, match=r"RuntimeError .*\n(.|\n)*no licence"):
        probe("custom_of_a_test:fails", EnvOptions())
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_missing\n")
    with pytest.raises(EnvSetupError, match=r"ModuleNotFoundError: .*a_package_that_is_missing"):
        probe("needs_more:make_env", EnvOptions())
    (tmp_path / "no_python.py").write_text("\n\ndef make_env(:\n")
    with pytest.raises(EnvSetupError, match="SyntaxError") as caught:
        probe("no_python:make_env", EnvOptions())
    assert 'no_python.py", line 3' in str(caught.value)
    assert "importlib" not in str(caught.value)


def test_a_vector_has_as_many_rows_as_are_needed():
    spec = probe("custom_of_a_test:make_vec", options("size=3"))
    vector_env = make_vector_env(spec.env_id, 5, 0, options("size=3"), default_shaping_source(spec))
    assert type(vector_env).__name__ == "NativeVectorEnv"
    assert (vector_env.rows, vector_env.spec) == (5, spec)


@pytest.mark.parametrize("frames", [0, 1.5, True, "4"])
def test_frames_per_step_must_be_a_whole_number(frames):
    from pbt_rl.envs.toy import Counting

    env = Counting()
    env.frames_per_step = frames
    with pytest.raises(EnvSetupError, match="frames_per_step"):
        frames_per_step("m:f", gymnasium.wrappers.TimeLimit(env, 5))


@pytest.mark.parametrize(("factory", "per_second"), [("Drawn", 12), ("AlwaysDrawn", 30), ("drawn_vec", 12)])
def test_what_renders_can_be_filmed(factory, per_second):
    from pbt_rl.envs.films import film

    vector_env, camera = film(f"custom_of_a_test:{factory}", 3, 0, options(), lambda _row: (0, {}))
    try:
        assert (vector_env.rows, camera.frames_per_second) == (3, per_second)
        step = private_step_arrays(vector_env.spec, 3)
        vector_env.reset(step)
        picture = camera.shoot(step, None)
        assert (picture.shape, picture.dtype) == ((4, 6, 3), np.uint8)
    finally:
        vector_env.close()


@pytest.mark.parametrize("display", ["", ":0"])
def test_films_need_no_display(monkeypatch, display):
    from pbt_rl.envs.films import film

    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    monkeypatch.delenv("SDL_VIDEODRIVER")  # set before, so that it is unset again after the test
    film("custom_of_a_test:Drawn", 1, 0, options(), lambda _row: (0, {}))[0].close()
    assert os.environ.get("SDL_VIDEODRIVER") == (None if display else "dummy")
    assert os.environ["MUJOCO_GL"] == "osmesa"


@pytest.mark.parametrize(
    ("factory", "message"), [("told_nothing", "returned None"), ("make_env", "rendered: NotImplementedError")]
)
def test_what_does_not_render_is_one_clear_error(factory, message):
    from pbt_rl.envs.films import film

    vector_env, camera = film(f"custom_of_a_test:{factory}", 1, 0, options(), lambda _row: (0, {}))
    with pytest.raises(EnvSetupError, match=f"^--video: .*{message}.*a parameter render_mode"):
        camera.shoot(private_step_arrays(vector_env.spec, 1), None)
    vector_env.close()


def test_an_error_in_render_has_its_place():
    from pbt_rl.envs.films import film

    vector_env, camera = film("custom_of_a_test:BadlyDrawn", 1, 0, options(), lambda _row: (0, {}))
    with pytest.raises(
        EnvSetupError, match=r"^--video: render\(\) raised KeyError(.|\n)*, in render\n"
    ) as caught:
        camera.shoot(private_step_arrays(vector_env.spec, 1), None)
    assert "films.py" not in str(caught.value)
    vector_env.close()
