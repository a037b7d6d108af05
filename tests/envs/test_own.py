"""The user's own environments: how they are found, called and stepped, and native vectors of all three kinds."""

from importlib.metadata import EntryPoint

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pbt_rl.envs import own, registry
from pbt_rl.envs.base import EnvSetupError, default_shaping_source, private_step_arrays
from pbt_rl.envs.registry import EnvOptions, keywords, make_unit, probe, recipe
from pbt_rl.envs.toy import Counting, counting_errors

MODULE = """
import gymnasium
import numpy as np
from pbt_rl.envs.toy import Identity, Shaped

made = []

def make_env(size=4, name="x"):
    made.append((size, name))
    return Identity(size)

def make_shaped():
    return gymnasium.wrappers.TimeLimit(Shaped(), 5)

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

def nothing():
    return None

def fails():
    raise RuntimeError("no licence")

def fixed_vector():
    return gymnasium.vector.SyncVectorEnv([Identity] * 3)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "own_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_of_a_test", raising=False)


def options(*pairs):
    return EnvOptions(keywords=keywords(pairs))


def test_a_factory_of_a_module_is_called_with_the_options():
    spec = probe("own_of_a_test:make_env", options("size=6", "name=a b"))
    assert (spec.env_id, spec.action.nvec) == ("own_of_a_test:make_env", (6,))
    import own_of_a_test

    assert own_of_a_test.made == [(6, "a b")]
    unit = make_unit(spec.env_id, 3, 0, options("size=6"), default_shaping_source(spec))
    assert unit.spec == spec
    assert len(own_of_a_test.made) == 4  # one a row, none thrown away
    assert probe("own_of_a_test:Group.env", EnvOptions()).action.nvec == (4,)
    assert recipe("own_of_a_test:make_env")["model.encoder"] == "mlp"


def test_values_are_json_where_they_can_be():
    pairs = ("a=1", "b=0.5", "c=true", "d=[1, 2]", "e=text", "f=", 'g={"h": null}', "i=x=y")
    assert list(keywords(pairs).values()) == [1, 0.5, True, [1, 2], "text", "", {"h": None}, "x=y"]


@pytest.mark.parametrize("pairs", [["size"], ["=3"], ["two words=3"], ["a=1", "a=2"]])
def test_an_option_that_is_no_pair_is_refused(pairs):
    with pytest.raises(EnvSetupError, match=f"--env-option {pairs[-1]} cannot be used"):
        keywords(pairs)


def test_options_reach_gym_and_are_refused_elsewhere():
    assert registry.make_raw("gym/FrozenLake-v1", options("map_name=8x8")).observation_space.n == 64
    with pytest.raises(EnvSetupError, match=r"gym/FrozenLake-v1 cannot be made.*mapname"):
        probe("gym/FrozenLake-v1", options("mapname=8x8"))
    with pytest.raises(EnvSetupError, match=r"--env-option size=.*not for toy/"):
        probe("toy/identity", options("size=3"))


def test_an_installed_entry_point_is_found_by_name_and_takes_a_level(monkeypatch):
    point = EntryPoint("mine", "own_of_a_test:make_level", own.GROUP)
    monkeypatch.setattr(own, "entry_points", lambda group: [point] if group == own.GROUP else [])
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == own.GROUP else [])
    assert registry.plugins() == ("mine",)
    assert probe("mine", EnvOptions()).frame_skip == 1
    assert probe("mine/fast", options("size=5")) == probe("mine/fast", options("size=5"))
    spec = probe("mine/fast", options("size=5"))
    assert (spec.env_id, spec.frame_skip, spec.action.nvec) == ("mine/fast", 4, (5,))


def test_shaping_is_found_below_wrappers():
    assert probe("own_of_a_test:make_shaped", EnvOptions()).shaping == {"bait": 1.2}


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("no_such_module:make_env", "no module 'no_such_module' in the working directory"),
        ("own_of_a_test.py:make_env", "write module:factory, such as own_of_a_test:make_env"),
        ("own_of_a_test:make_evn", "has no 'make_evn'; did you mean make_env"),
        ("own_of_a_test:number", "is int, not a function"),
        ("own_of_a_test:nothing", "returned builtins.NoneType, not an environment: return a gymnasium.Env"),
        ("own_of_a_test:ParallelEnv", "PettingZoo environment: multi-agent is not there yet"),
        ("own_of_a_test:fixed_vector", "3 rows where 1 are needed: give it the parameter num_envs"),
        ("nowhere", "'nowhere' names no environment.*module:factory for your own"),
    ],
)
def test_what_cannot_be_used_is_named_with_a_remedy(env_id, message):
    with pytest.raises(EnvSetupError, match=message):
        probe(env_id, EnvOptions())


def test_an_option_that_the_factory_does_not_take_is_named_with_those_it_takes():
    with pytest.raises(
        EnvSetupError, match="unexpected keyword argument 'sice'; its options are: size=4, name"
    ):
        probe("own_of_a_test:make_env", options("sice=3"))


def test_what_the_factory_or_its_module_raises_passes_through(tmp_path):
    with pytest.raises(RuntimeError, match="no licence"):
        probe("own_of_a_test:fails", EnvOptions())
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_missing\n")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
        probe("needs_more:make_env", EnvOptions())


def test_environments_that_are_made_unalike_are_refused():
    with pytest.raises(EnvSetupError, match="two environments differ in their spaces"):
        make_unit("own_of_a_test:changing", 2, 0, EnvOptions(), lambda _row: (0, {}))


# Native vectors


class Recorder(SyncVectorEnv):
    """Remembers what it was given; made of environments with known answers."""

    def __init__(self, make, rows, mode):
        super().__init__([make] * rows, autoreset_mode=mode)
        self.actions, self.calls = [], 0

    def step(self, actions):
        self.calls += 1
        self.actions.append(np.array(actions))
        return super().step(actions)


def vector_unit(make, rows, mode, shaping=lambda _row: (0, {}), seed=0):
    from pbt_rl.envs.vector_env import VectorUnit

    env = Recorder(make, rows, mode)
    unit = VectorUnit("m:f", env, seed, shaping)
    out = private_step_arrays(unit.spec, rows)
    for array in (*out.obs.values(), out.reward, out.objective, out.length):
        array[:] = 77  # poison
    unit.reset(out)
    return unit, env, out


def play(unit, out, steps, seed=1):
    rng = np.random.default_rng(seed)
    history = []

    def snap(action=None):
        fields = {name: getattr(out, name).copy() for name in vars(out) if name != "obs"}
        history.append({**fields, "obs": out.obs["obs"].copy(), "action": action})

    snap()
    for _ in range(steps):
        action = rng.integers(unit.spec.action.nvec, size=(unit.rows, 1)).astype(np.int32)
        history[-1]["action"] = action
        unit.step(action, out)
        snap(np.zeros((unit.rows, 1), np.int32))
    return {name: np.stack([step[name] for step in history]) for name in history[0]}


def test_a_next_step_vector_delivers_what_single_environments_do():
    from pbt_rl.envs.gymnasium_env import GymUnit

    unit, env, out = vector_unit(Counting, 3, AutoresetMode.NEXT_STEP)
    single = GymUnit("m:f", Counting, 3, 0, lambda _row: (0, {}))
    single_out = private_step_arrays(single.spec, 3)
    single.reset(single_out)
    many, one = play(unit, out, 120), play(single, single_out, 120)
    assert env.calls == 120
    for row in range(3):
        trace = many["obs"][:, row], many["action"][:, row, 0], many["first"][:, row]
        assert counting_errors(*trace) == []
    for name in set(many) - {"obs"}:
        assert (many[name] == one[name]).all(), name
    assert (many["obs"][..., 1:] == one["obs"][..., 1:]).all()  # all but the ids, which are made of seeds


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_vector_that_resets_at_once_loses_the_first_step_of_an_episode_and_nothing_else(mode):
    unit, _, out = vector_unit(Counting, 3, mode)
    got = play(unit, out, 200)
    assert got["episode_done"].sum() > 30
    assert (got["episode_done"] == (got["terminated"] | got["truncated"])).all()
    for row in range(3):
        ids, episode, step, _ = got["obs"][:, row].T
        done, first = got["episode_done"][:, row], got["first"][:, row]
        assert len(set(ids)) == 1
        assert (first[1:] == done[:-1]).all()
        assert (step[first][1:] == 1).all()  # the very first episode is seen from its step 0
        assert step[0] == 0
        assert (episode[1:][first[1:]] == episode[:-1][done[:-1]] + 1).all()
        lengths = 5 + episode * 7 % 13
        assert (step[done] == lengths[done]).all()  # the final observation, not the next episode's
        assert (got["length"][:, row][done] == lengths[done]).all()
        returns = lengths * (lengths + 1) / 2
        assert (got["objective"][:, row][done] == returns[done]).all()
        assert (got["reward"][:, row] == np.where(first, 0, step)).all()
        assert (got["truncated"][:, row][done] == (episode[done] % 3 == 2)).all()


class OneStep(Counting):
    """An episode is one step long."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, True, {**info, "true_objective": 9.0}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_episodes_of_one_step(mode):
    unit, _, out = vector_unit(OneStep, 2, mode)
    got = play(unit, out, 6)
    assert got["first"][:, 0].tolist() == [True, False] * 3 + [True]
    assert got["episode_done"][:, 0].tolist() == [False, True] * 3 + [False]
    assert (got["objective"][1::2] == 9).all()
    assert (got["obs"][1::2, :, 2] == 1).all()  # final
    assert (got["obs"][::2, :, 2] == 0).all()  # first


class Rich(gymnasium.Env):
    """Dict observations, an image among them, a start of 5, actions with a shape; shaping for one agent."""

    observation_space = Dict(
        {
            "eye": Box(0, 255, (4, 5, 3), np.uint8),
            "body": Dict({"speed": Box(-1, 1, (2,), np.float64)}),
            "kind": Discrete(3, start=5),
        }
    )
    action_space = MultiDiscrete([3, 4], start=[1, 0])

    def __init__(self):
        self.gain = 1.0

    def get_default_reward_shaping(self):
        return {"gain": 1.0}

    def set_reward_shaping(self, reward_shaping, agent_idx):
        self.gain = reward_shaping["gain"]

    def _see(self):
        eye = np.full((4, 5, 3), self.t, np.uint8)
        eye[..., 2] = 200
        return {"eye": eye, "body": {"speed": np.array([0.25, self.t / 10])}, "kind": 5 + self.t % 3}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._see(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        return self._see(), self.gain, False, self.t == 4, {"true_objective": -1.0} if self.t == 4 else {}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_dict_observations_shaping_and_objectives_of_vectors(mode):
    now = {"gain": 2.0}
    unit, env, out = vector_unit(Rich, 2, mode, lambda row: (3, {"gain": now["gain"] + row}))
    assert unit.spec.shaping == {"gain": 1.0}
    for _ in range(4):
        unit.step(np.array([[0, 3], [2, 1]], np.int32), out)
    assert env.actions[0].tolist() == [[1, 3], [3, 1]]
    assert out.truncated.all()
    assert out.objective.tolist() == [-1, -1]
    assert out.raw_return.tolist() == [8, 12]
    assert out.obs["eye"].shape == (2, 3, 4, 5)
    assert (out.obs["eye"][:, 0] == 4).all()  # final
    assert (out.obs["eye"][:, 2] == 200).all()
    assert out.obs["body.speed"].tolist() == pytest.approx(np.array([[0.25, 0.4]] * 2))
    assert out.obs["kind"].tolist() == [[0, 1, 0]] * 2
    now["gain"] = 5.0
    unit.step(np.zeros((2, 2), np.int32), out)
    assert out.first.all()
    unit.step(np.zeros((2, 2), np.int32), out)
    # NEXT_STEP asks when the row is reset; the others reset in the last step, before the change.
    assert out.reward.tolist() == ([5, 6] if mode is AutoresetMode.NEXT_STEP else [2, 3])


class Broken(SyncVectorEnv):
    def __init__(self, mode=AutoresetMode.SAME_STEP, change=None):
        super().__init__([Counting] * 2, autoreset_mode=mode)
        self.change = change

    def step(self, actions):
        answer = list(super().step(actions))
        self.change(answer)
        return tuple(answer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[4].pop("final_obs", None), r'info\["final_obs"\] must hold the final observation'),
        (lambda a: a.__setitem__(0, a[0][:, :3]), r"expected shape \(2, 4\), got shape \(2, 3\)"),
        (lambda a: a.__setitem__(0, a[0] * np.nan), "finite"),
        (lambda a: a.__setitem__(0, a[0].astype(str)), "expected numbers, got dtype"),
        (lambda a: a.__setitem__(1, a[1] * np.inf), "rewards must be finite"),
        (lambda a: a.__setitem__(1, a[1][:1]), r"rewards must have shape \(2,\)"),
        (lambda a: a.__setitem__(2, a[2][:1]), r"terminations and truncations must have shape \(2,\)"),
        (lambda a: a.pop(), r"step\(\) must return"),
    ],
)
def test_a_vector_that_breaks_its_contract_is_named(change, message):
    from pbt_rl.envs.vector_env import VectorUnit

    unit = VectorUnit("m:f", Broken(change=change), 0, lambda _row: (0, {}))
    out = private_step_arrays(unit.spec, 2)
    unit.reset(out)
    with pytest.raises(EnvSetupError, match=f"m:f.*{message}"):
        play(unit, out, 30)


def test_a_vector_must_say_how_it_resets():
    env = SyncVectorEnv([Counting])
    del env.metadata["autoreset_mode"]
    from pbt_rl.envs.vector_env import describe_vector

    with pytest.raises(EnvSetupError, match=r"autoreset_mode.*NEXT_STEP, SAME_STEP or DISABLED"):
        describe_vector("m:f", env)


def test_vectors_are_seeded_and_closed_once():
    def start(seed):
        unit, _, out = vector_unit(Counting, 2, AutoresetMode.NEXT_STEP, seed=seed)
        unit.close()
        unit.close()
        return out.obs["obs"].copy()

    assert (start(1) == start(1)).all()
    assert (start(1) != start(2)).any()
    assert start(1)[0, 0] != start(1)[1, 0]


@pytest.mark.parametrize("frames", [0, 1.5, True, "4"])
def test_frames_per_step_must_be_a_whole_number(frames):
    from pbt_rl.envs.shaping import frames_per_step

    env = Counting()
    env.frames_per_step = frames
    with pytest.raises(EnvSetupError, match="frames_per_step"):
        frames_per_step("m:f", gymnasium.wrappers.TimeLimit(env, 5))
