"""Vector envs of Gymnasium environments: spaces, protocol, seeds, shaping, invalid return values."""

import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.gym import GymVectorEnv, describe, make_vector_env, recipe
from pbt_rl.envs.spaces import obs_leaves, read_leaf
from pbt_rl.envs.toy import Shaped
from pbt_rl.errors import EnvSetupError

VECTOR = spaces.Box(-1, 1, (2,))


class Scripted(gymnasium.Env):
    """Environment that returns prepared values: `start` in reset, then one entry per step. Records its inputs."""

    def __init__(self, script=(), start=None, observation_space=VECTOR, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.script = list(script)
        self.start = np.zeros(2, np.float32) if start is None else start
        self.seeds, self.actions, self.closed = [], [], 0

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.position = 0
        return self.start, {}

    def step(self, action):
        self.actions.append(action)
        self.position += 1
        return self.script[self.position - 1]

    def close(self):
        self.closed += 1


def entry(reward=0.0, *, obs=(0.5, 0.5), terminated=False, truncated=False, **info):
    return np.array(obs, np.float32), reward, terminated, truncated, info


def vector_env_of(*envs, seed=0, shaping=lambda _row: (0, {})):
    source = iter(envs)
    vector_env = GymVectorEnv("gym/Scripted-v0", lambda: next(source), len(envs), seed, shaping)
    out = private_step_arrays(vector_env.spec, vector_env.rows)
    vector_env.reset(out)
    return vector_env, out


def step(vector_env, out, *actions):
    vector_env.step(np.array(actions or [0] * vector_env.rows, np.int32).reshape(vector_env.rows, -1), out)


def test_an_episode_ends_then_the_next_step_resets_and_ignores_its_action():
    env = Scripted([entry(1.0), entry(2.0, obs=(1, 1), terminated=True)])
    vector_env, out = vector_env_of(env)
    assert out.first.all()
    step(vector_env, out, 1)
    assert (out.first[0], out.reward[0], out.episode_done[0]) == (False, 1.0, False)
    step(vector_env, out, 1)
    assert out.obs["obs"][0].tolist() == [1, 1]
    assert (out.terminated[0], out.truncated[0], out.episode_done[0]) == (True, False, True)
    assert (out.objective[0], out.raw_return[0], out.shaped_return[0], out.length[0]) == (3.0, 3.0, 3.0, 2)
    step(vector_env, out, 1)
    assert out.obs["obs"][0].tolist() == [0, 0]
    assert (out.first[0], out.reward[0]) == (True, 0.0)
    assert not any((out.terminated[0], out.truncated[0], out.episode_done[0]))
    assert env.actions == [1, 1]
    step(vector_env, out, 0)
    assert (out.first[0], out.reward[0], out.episode_done[0]) == (False, 1.0, False)
    step(vector_env, out, 0)
    assert (out.episode_done[0], out.raw_return[0], out.length[0]) == (True, 3.0, 2), (
        "nothing of the first is left"
    )


def test_truncation_is_kept_apart_from_termination():
    ends = [{"truncated": True}, {"terminated": True}, {}, {"terminated": True, "truncated": True}]
    vector_env, out = vector_env_of(*(Scripted([entry(**end)] * 2) for end in ends))
    step(vector_env, out)
    assert out.truncated.tolist() == [True, False, False, False]
    assert out.terminated.tolist() == [False, True, False, True]
    assert out.episode_done.tolist() == [True, True, False, True]
    step(vector_env, out)
    assert out.first.tolist() == [True, True, False, True]


def test_rows_are_seeded_once_and_apart():
    envs = [Scripted([entry(terminated=True)]) for _ in range(3)]
    vector_env, out = vector_env_of(*envs, seed=3)
    step(vector_env, out)
    step(vector_env, out)
    vector_env.reset(out)
    assert len({env.seeds[0] for env in envs}) == 3
    assert all(env.seeds[1:] == [None, None] for env in envs)
    assert all(0 <= env.seeds[0] < 2**31 for env in envs), "an int of C, for engines"
    others = [Scripted() for _ in range(3)]
    vector_env_of(*others, seed=4)
    assert not {env.seeds[0] for env in envs} & {env.seeds[0] for env in others}


def test_vector_envs_of_the_same_seed_are_equal_and_of_others_not():
    def run(seed):
        vector_env = make_vector_env("CartPole-v1", 2, seed, lambda _row: (0, {}), {})
        out = private_step_arrays(vector_env.spec, 2)
        vector_env.reset(out)
        seen = []
        for t in range(60):
            step(vector_env, out, t % 2, (t // 2) % 2)
            seen.append(out.obs["obs"].copy())
        return np.stack(seen)

    assert (run(1) == run(1)).all()
    assert (run(1) != run(2)).any()


def test_shaping_takes_effect_at_the_next_episode_only():
    env = Shaped(length=2)
    now = {"answer": (1, {"bait": 2.0})}
    vector_env, out = vector_env_of(env, shaping=lambda _row: now["answer"])
    step(vector_env, out, 4)
    assert out.reward[0] == 2.0
    now["answer"] = (2, {"bait": 3.0})
    step(vector_env, out, 4)
    assert (out.reward[0], out.shaping_version[0], out.episode_done[0]) == (2.0, 1, True)
    step(vector_env, out, 4)
    assert out.first[0]
    step(vector_env, out, 4)
    assert out.reward[0] == 3.0
    step(vector_env, out, 4)
    assert (out.shaping_version[0], out.episode_done[0]) == (2, True)


def test_shaping_is_found_below_wrappers_and_given_nested_for_agent_0():
    class Nested(Scripted):
        def get_default_reward_shaping(self):
            return {"weapon": {"hit": 1}, "death": -2}

        def set_reward_shaping(self, reward_shaping, agent_idx):
            self.given = (reward_shaping, agent_idx, len(self.seeds))

    env = Nested()
    wrapped = gymnasium.wrappers.TimeLimit(env, 9)
    assert describe("x", wrapped).shaping == {"weapon.hit": 1.0, "death": -2.0}
    vector_env_of(wrapped, shaping=lambda _row: (0, {"weapon.hit": 4.0, "death": -1.0}))
    assert env.given == ({"weapon": {"hit": 4.0}, "death": -1.0}, 0, 0)  # set before the first reset


# Invalid return values: the error has the environment, the expected and the actual value.


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (entry(obs=(1, 2, 3)), r"'obs'.*shape \(2,\).*shape \(3,\)"),
        (entry(obs=(np.nan, 0)), "'obs'.*finite.*NaN"),
        (entry(obs=(np.inf, 0)), "'obs'.*finite"),
        ((np.array(["a", "b"]), 0.0, False, False, {}), "'obs'.*numbers.*dtype <U1"),
        (entry(float("nan")), "reward .*nan"),
        (entry("much"), "reward .*'much'"),
        (entry("1.0"), "reward .*'1.0'"),
        (entry(np.array("1.0")), r"reward .*array\('1.0'"),
        (entry(None), "reward .*None"),
        (entry(terminated=True, true_objective="high"), "true_objective.*'high'"),
        ((np.zeros(2), 0.0, True, {}), r"step\(\)"),
    ],
)
def test_a_step_that_breaks_the_contract_is_named(answer, message):
    vector_env, out = vector_env_of(Scripted([answer]))
    with pytest.raises(EnvSetupError, match=f"gym/Scripted-v0.*{message}"):
        step(vector_env, out)


@pytest.mark.parametrize(
    ("reset", "wrapped", "refused"),
    [
        (lambda _: (np.zeros(2), {}), False, "seed"),
        (lambda _, seed=None: (np.zeros(2), {}), True, "seed, options"),
        (lambda _, *, options, seed=None: (np.zeros(2), {}), False, "needs more"),
        (lambda _, seed=None: (np.zeros(2), {}), False, ""),
        (lambda _, **_more: (np.zeros(2), {}), True, ""),
    ],
)
def test_a_reset_of_the_old_interface_is_refused_before_it_is_called(reset, wrapped, refused):
    env = type("Old", (Scripted,), {"reset": reset})()
    env = gymnasium.wrappers.TimeLimit(env, 5) if wrapped else env
    if not refused:
        assert describe("old:make", env).env_id == "old:make"
        return
    with pytest.raises(EnvSetupError, match=f"old:make: .*reset.*{refused}"):
        describe("old:make", env)


@pytest.mark.parametrize(
    ("sides", "encoder"), [((84,), "auto"), ((36, 84), "auto"), ((7,), "mlp"), ((24, 84), "impala")]
)
def test_images_too_small_for_the_usual_network_are_seen_by_another(sides, encoder):
    images = {f"cam{side}": spaces.Box(0, 255, (side, side, 3), np.uint8) for side in sides}
    env = Scripted(start=None, observation_space=spaces.Dict({**images, "joints": VECTOR}))
    found = recipe(describe("x", env))
    assert (found["model.encoder"], found["learner.batch"]) == (encoder, 1024)
    assert recipe(describe("x", Scripted()))["model.encoder"] == "mlp"


def test_what_cannot_be_read_is_refused():
    space = spaces.Dict({"eye": spaces.Dict({"left": VECTOR}), "ear": VECTOR})
    env = Scripted(start={"eye": {"right": np.zeros(2)}, "ear": np.zeros(2)}, observation_space=space)
    with pytest.raises(EnvSetupError, match=r"gym/Scripted-v0.*'eye.left'.*key 'left'.*\['right'\]"):
        vector_env_of(env)
    with pytest.raises(EnvSetupError, match=r"uint8.*float64"):
        read(spaces.Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4)))
    one = Scripted()
    with pytest.raises(EnvSetupError, match=r"m:f .*twice"):
        GymVectorEnv("m:f", lambda: one, 2, 0, lambda _: (0, {}))


def test_closing_twice_closes_each_environment_once():
    envs = [Scripted(), Scripted()]
    vector_env, _ = vector_env_of(*envs)
    vector_env.close()
    vector_env.close()
    assert [env.closed for env in envs] == [1, 1]


# Spaces


def read(space, obs):
    return {leaf.name: (leaf.spec, read_leaf(leaf, obs, "x")) for leaf in obs_leaves(space, "x")}


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Sequence(VECTOR), "Sequence"),
        (spaces.Tuple((VECTOR, spaces.Sequence(VECTOR))), "FilterObservation"),
        (spaces.Dict(deep=spaces.Dict(a=VECTOR, b=spaces.Sequence(VECTOR))), "TransformObservation"),
        (spaces.Dict(a=spaces.Box(-1, 1, (0, 3)), b=VECTOR), r"'a' .*shape \(0, 3\)"),
        (spaces.Dict({"a": spaces.Dict({"b": VECTOR}), "a.b": VECTOR}), r"'a\.b'"),
    ],
)
def test_other_observation_spaces_are_refused(space, named):
    with pytest.raises(EnvSetupError, match=f"x: .*{named}"):
        obs_leaves(space, "x")


@pytest.mark.parametrize("state", [-1, 3, 0.5])
def test_a_discrete_observation_out_of_range_is_refused(state):
    with pytest.raises(EnvSetupError, match=r"0\.\.2"):
        read(spaces.Discrete(3), state)


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_are_an_error_and_no_warning():
    space, large = spaces.Box(-np.inf, np.inf, (2,), np.float64), np.array([0.5, 1e300])
    with pytest.raises(EnvSetupError, match=r"NaN .*float32"):
        vector_env_of(Scripted(start=large, observation_space=space))
    vector_env, out = vector_env_of(Scripted([(large, 0.0, False, False, {})], observation_space=space))
    with pytest.raises(EnvSetupError, match=r"NaN .*float32"):
        step(vector_env, out)


def test_the_time_limit_of_a_registered_environment_truncates():
    vector_env = make_vector_env("Pendulum-v1", 1, 0, lambda _row: (0, {}), {})
    out = private_step_arrays(vector_env.spec, 1)
    vector_env.reset(out)
    for _ in range(200):
        vector_env.step(np.zeros((1, 1), np.float32), out)
    assert (out.truncated[0], out.terminated[0], out.length[0]) == (True, False, 200)


@pytest.mark.parametrize("own", [None, print], ids=["no handler", "the user's handler"])
def test_equal_warnings_of_mujoco_are_printed_once(monkeypatch, capsys, own):
    """The first environment imports MuJoCo, so MuJoCo itself prints the warnings of this environment."""
    handlers = [own]
    mujoco = SimpleNamespace(get_mju_user_warning=lambda: handlers[-1], set_mju_user_warning=handlers.append)

    def make():
        if "mujoco" in sys.modules and not own:
            for text in ("deprecated", "unstable"):
                handlers[-1](text)
        monkeypatch.setitem(sys.modules, "mujoco", mujoco)
        return Scripted()

    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    GymVectorEnv("gym/x", make, 3, 0, lambda _row: (0, {})).close()
    assert handlers[-1] is own
    assert capsys.readouterr().err == ("" if own else "WARNING: deprecated\nWARNING: unstable\n")
