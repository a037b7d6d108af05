"""Third-party environments with unusual attributes, values, names and ends."""

import sys
from types import ModuleType
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pbt_rl.envs.base import ActionSpec, private_step_arrays, random_actions
from pbt_rl.envs.gym import GymVectorEnv, describe
from pbt_rl.envs.lookup import EnvOptions, keywords, probe
from pbt_rl.envs.old_gym import OldGym
from pbt_rl.envs.shaping import default_shaping, find_interface, frames_per_step
from pbt_rl.envs.user_values import metadata_of, wrapped
from pbt_rl.envs.vectors import NativeVectorEnv
from pbt_rl.errors import EnvSetupError

BOX = spaces.Box(0, 1, (2,), np.float32)


class Plain(gymnasium.Env):
    """Episodes of 3 steps of reward 1."""

    observation_space, action_space = BOX, spaces.Discrete(2)
    info, ended, reward = {}, True, 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        over = self.time >= 3
        return (
            np.zeros(2, np.float32),
            self.reward,
            self.ended if over else False,
            False,
            dict(self.info if over else {}),
        )


def env_of(**attributes):
    return type("Made", (Plain,), attributes)


class Source:
    """Shaping source that records warnings."""

    def __init__(self, values=None):
        self.told, self.values = [], values or {}
        self.warn = self.told.append

    def __call__(self, _row):
        return 0, self.values


def played(kind, steps=8, source=None, wrap=lambda env: env):
    """Step two rows. Return the step arrays at the end of the last episode."""
    vector_env = GymVectorEnv("m:f", lambda: wrap(kind()), 2, 0, source or Source())
    out, ends = private_step_arrays(vector_env.spec, 2), []
    vector_env.reset(out)
    for _ in range(steps):
        vector_env.step(np.zeros((2, 1), np.int32), out)
        if out.episode_done[0]:
            ends.append((float(out.objective[0]), float(out.raw_return[0]), bool(out.terminated[0])))
    return ends


class Cyclic(Plain):
    @property
    def env(self):
        return self


class Raising(Plain):
    @property
    def env(self):
        raise RuntimeError("there is none")

    metadata = property(lambda self: 1 / 0)


class Proxy(Plain):
    def __getattr__(self, name):
        return Mock()


@pytest.mark.parametrize("kind", [Cyclic, Raising, Proxy, env_of(metadata=None), env_of(metadata=[1])])
def test_attributes_that_are_none_cyclic_or_made_up_are_as_if_they_were_not_there(kind):
    env = kind()
    assert metadata_of(env) == ({} if kind is not Cyclic and kind is not Proxy else env.metadata)
    assert list(wrapped(env)) == [env]
    assert find_interface(env) is None
    assert default_shaping("m:f", env) == {}
    assert frames_per_step("m:f", env) == 1
    assert played(kind)


@pytest.mark.parametrize("which", ["observation_space", "action_space"])
@pytest.mark.parametrize("space", [None, type("Box", (), {"__module__": "gym.spaces"})()])
def test_a_space_that_is_none_of_gymnasiums_is_named(which, space):
    with pytest.raises(EnvSetupError, match=r"m:f: .*(None|gym\.spaces\.Box), .*Gymnasium"):
        describe("m:f", env_of(**{which: space})())


def getter(self):
    return {"cost": 1.0}


def setter(self, reward_shaping, agent_idx):
    pass


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"get_default_reward_shaping": getter}, "only get_default_reward_shaping"),
        ({"set_reward_shaping": setter}, "only set_reward_shaping"),
        (
            {"get_default_reward_shaping": getter, "set_reward_shaping": lambda self, shaping: None},
            "set_reward",
        ),
        ({"get_default_reward_shaping": lambda self, row: {}, "set_reward_shaping": setter}, "get_default"),
        ({"set_training_info": lambda self: None}, "set_training_info"),
    ],
)
def test_half_an_interface_or_one_that_cannot_be_called_is_refused(methods, said):
    with pytest.raises(EnvSetupError, match=said):
        describe("m:f", gymnasium.wrappers.TimeLimit(env_of(**methods)(), 5))


SHAPED = {"get_default_reward_shaping": getter, "set_reward_shaping": setter}


@pytest.mark.parametrize(
    ("attributes", "values", "said"),
    [
        (SHAPED, {"cost": 1.0}, "no info"),
        (SHAPED | {"info": {"true_objective": 1.0}}, {"cost": 1.0}, None),
        ({"info": {"action_mask": np.ones(2, np.int8)}}, {}, "action_mask"),
    ],
)
def test_what_a_user_may_not_have_meant_is_warned_of_once(attributes, values, said):
    source = Source(values)
    played(env_of(**attributes), source=source)
    assert len(source.told) == (said is not None)
    assert said is None or said in source.told[0]


def test_the_return_that_was_recorded_before_rewards_were_changed_is_the_objective():
    wrappers = gymnasium.wrappers

    def inside(env):
        return wrappers.TransformReward(wrappers.RecordEpisodeStatistics(env), lambda r: r / 10)

    assert played(Plain, wrap=inside)[0][:2] == (3.0, pytest.approx(0.3))

    def outside():
        return wrappers.RecordEpisodeStatistics(wrappers.TransformReward(Plain(), lambda r: r / 10))

    assert played(outside)[0][0] == pytest.approx(0.3)
    given = env_of(info={"true_objective": 7.0})
    assert played(given, wrap=inside)[0][0] == 7.0


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_same_holds_for_a_vector(mode):
    wrappers = gymnasium.wrappers.vector
    vector = wrappers.RecordEpisodeStatistics(SyncVectorEnv([Plain] * 2, autoreset_mode=mode))
    vector_env = NativeVectorEnv("m:f", wrappers.TransformReward(vector, lambda r: r / 10), 0, Source())
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    for _ in range(3):
        vector_env.step(np.zeros((2, 1), np.int32), out)
    assert (out.objective[0], out.raw_return[0]) == (3.0, pytest.approx(0.3))


def test_a_wrapper_that_normalises_rewards_is_a_note_unless_the_return_is_recorded_inside():
    wrappers = gymnasium.wrappers
    own = type("Own", (wrappers.NormalizeReward,), {})(Plain())
    for env in (wrappers.TimeLimit(own, 5), wrappers.RecordEpisodeStatistics(own)):
        (note,) = describe("m:f", env).notes
        assert "NormalizeReward" in note
    recorded = wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(Plain()))
    assert describe("m:f", recorded).notes == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("False", False),
        ("None", None),
        ("5M", 5000000),
        ("{'a': 1}", {"a": 1}),
        ('"no"', "no"),
        ("x=y", "x=y"),
        ("007", "007"),
        ("os.getcwd()", "os.getcwd()"),
    ],
)
def test_an_option_of_an_environment_is_read_as_people_type_it(text, value):
    (found,) = keywords([f"x={text}"]).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("ended", [True, np.True_, 1, np.array([True]), [True]])
@pytest.mark.parametrize("reward", [np.array([1.0]), np.float32(1), np.array(1), True])
def test_an_end_may_be_any_one_truth_and_a_reward_an_array_of_one(ended, reward):
    assert [objective for objective, *_ in played(env_of(ended=ended, reward=reward))] == [3.0, 3.0]


@pytest.mark.parametrize("ended", ["False", np.array([True, False]), None, np.nan, 0.01, 1.0, 3])
def test_an_end_that_is_no_truth_is_refused(ended):
    with pytest.raises(EnvSetupError, match=r"terminated .*(False|array)"):
        played(env_of(ended=ended))


@pytest.mark.parametrize("done", ["False", None, 0.5])
def test_an_old_end_that_is_no_truth_is_refused(done):
    with pytest.raises(EnvSetupError, match=r"terminated .*True or False"):
        played(lambda: OldGym(Old(done=done)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
        spaces.Box(-1, 1, (2,), np.float64),
        spaces.Box(-2, 2, (2, 2), np.int8),
        spaces.Box(0, 255, (1,), np.uint8),
        spaces.Tuple([spaces.Box(0, 3, (1,), np.int64), spaces.Box(0, np.inf, (1,), np.float32)]),
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1,))])),
    ],
    ids=str,
)
def test_an_action_is_what_a_sample_of_its_space_is(space):
    taken = []

    class Taking(Plain):
        action_space = space

        def step(self, action):
            taken.append(action)
            return super().step(action)

    vector_env = GymVectorEnv("m:f", Taking, 2, 0, Source())
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    vector_env.step(random_actions(vector_env.spec, out, np.random.default_rng(0)), out)

    def kinds(value):
        if isinstance(value, dict):
            return {key: kinds(part) for key, part in value.items()}
        if isinstance(value, tuple):
            return tuple(map(kinds, value))
        return type(value), value.dtype, value.shape

    assert all(space.contains(action) and kinds(action) == kinds(space.sample()) for action in taken)


def test_a_wrapper_that_cannot_flatten_a_space_is_named_with_what_to_do(monkeypatch):
    class Words(spaces.Space):
        """A space of another class than Gymnasium's, like MiniGrid's space of missions."""

    class Mission(Plain):
        observation_space = spaces.Dict(image=BOX, mission=Words((), np.str_))

    module = ModuleType("flattened")
    module.make_env = lambda: gymnasium.wrappers.FlattenObservation(Mission())
    monkeypatch.setitem(sys.modules, "flattened", module)
    with pytest.raises(EnvSetupError, match="FlattenObservation") as caught:
        probe("flattened:make_env", EnvOptions())
    assert "\n" not in str(caught.value)


def test_actions_are_in_units_of_finite_bounds():
    from pbt_rl.envs.actions import action_spec

    spec = action_spec(
        spaces.Box(np.array([5, -1, -np.inf, 0, -3e38, 7]), np.array([35, 1, np.inf, np.inf, 3e38, np.inf])),
        "x",
    )
    assert spec.units == ((20, 0, 0, 0, 0, 7), (15, 1, 1, 1, 1, 1))
    assert ActionSpec(low=(-2.0,), high=(2.0,)).units == ((0.0,), (2.0,))


MASK = {"action_mask": np.array([0, 1], np.int8)}


class Game:
    """Two agents with masks in their info dicts."""

    possible_agents, metadata, of_reset, of_end = ["a", "b"], {}, True, {}

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.time = list(self.possible_agents), 0
        return self._all(np.zeros(2, np.float32)), self._all(MASK if self.of_reset else {})

    def _all(self, value):
        return dict.fromkeys(self.possible_agents, value)

    def step(self, actions):
        self.time += 1
        over = self.time >= 3
        self.agents = [] if over else self.agents
        infos = self._all(self.of_end if over else MASK)
        return self._all(np.zeros(2, np.float32)), self._all(0.0), self._all(over), self._all(False), infos

    def close(self):
        pass


@pytest.mark.parametrize("declared", [True, False])
def test_masks_in_infos_of_agents_are_obeyed_if_declared_and_warned_of_if_not(declared):
    from pbt_rl.envs.agents.multi_agent import MultiAgentVectorEnv
    from pbt_rl.envs.agents.tables import table_of

    source = Source()

    def make():
        game = Game()
        game.metadata = {"action_mask": declared}
        return table_of("m:f", game)

    vector_env = MultiAgentVectorEnv(make, 4, 0, source)
    out = private_step_arrays(vector_env.spec, 4)
    vector_env.reset(out)
    if declared:
        assert out.obs["action_mask"].tolist() == [[0, 1]] * 4
        assert source.told == []
    else:
        assert "action_mask" not in out.obs
        assert len(source.told) == 1
        assert "action_mask" in source.told[0]


class Misnamed(Game):
    """Returns rewards under unknown agent names."""

    def step(self, actions):
        seen, _, *others = super().step(actions)
        return seen, {"agent_0": 1.0, "agent_1": 1.0}, *others


def test_rewards_only_of_unknown_agents_are_refused():
    from pbt_rl.envs.agents.multi_agent import MultiAgentVectorEnv
    from pbt_rl.envs.agents.tables import table_of

    vector_env = MultiAgentVectorEnv(lambda: table_of("m:f", Misnamed()), 2, 0, Source())
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    with pytest.raises(EnvSetupError, match=r"m:f .*rewards .*\ba, b, .*agent_0"):
        vector_env.step(np.zeros((2, 1), np.int32), out)


class Old:
    """Old gym interface: `reset` without a seed, four values from `step`."""

    observation_space, action_space, metadata = BOX, spaces.Discrete(2), None

    def __init__(self, cut=False, done=True):
        self.seeds, self.cut, self.done = [], cut, done

    def seed(self, seed):
        self.seeds.append(seed)

    def reset(self):
        self.time = 0
        return np.zeros(2, np.float32)

    def step(self, action):
        self.time += 1
        return (
            np.zeros(2, np.float32),
            1.0,
            self.done if self.time >= 3 else False,
            {"TimeLimit.truncated": self.cut},
        )


@pytest.mark.parametrize(("cut", "done"), [(True, True), (False, True), (None, np.float32(1))])
def test_an_old_environment_plays_behind_its_adapter(cut, done):
    ends = played(lambda: OldGym(Old(cut, done)))
    assert [end[0] for end in ends] == [3.0, 3.0]
    assert [end[2] for end in ends] == [not cut] * 2
    env = OldGym(Old())
    env.reset(seed=7)
    assert env.old.seeds == [7]


def test_an_observation_named_turn_stays_beside_ours():
    from pbt_rl.envs.agents.players import TURN, Agents

    class Turns(Game):
        def observation_space(self, agent):
            return spaces.Dict(turn=BOX)

    agents = Agents("m:f", Turns(), turns=True)
    arrays = agents.read("a", {"turn": np.ones(2, np.float32)}, {}, moves=True)
    assert arrays[TURN].tolist() == [1, 1]
    assert arrays[f"{TURN}_"].tolist() == [1]
