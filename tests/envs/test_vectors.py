"""Native vector envs with each autoreset mode: steps, and rejected vector envs."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.gym import GymVectorEnv
from pbt_rl.envs.toy import Counting, counting_errors
from pbt_rl.envs.vectors import NativeVectorEnv, describe_vector
from pbt_rl.errors import EnvSetupError


class Recorder(SyncVectorEnv):
    """Vector env of known environments that records its inputs."""

    def __init__(self, make, rows, mode):
        super().__init__([make] * rows, autoreset_mode=mode)
        self.actions, self.calls = [], 0

    def step(self, actions):
        self.calls += 1
        self.actions.append(np.array(actions))
        return super().step(actions)


def native_vector_env(make, rows, mode, shaping=lambda _row: (0, {}), seed=0):
    env = Recorder(make, rows, mode)
    vector_env = NativeVectorEnv("m:f", env, seed, shaping)
    out = private_step_arrays(vector_env.spec, rows)
    for array in (*out.obs.values(), out.reward, out.objective, out.length):
        array[:] = 77  # poison
    vector_env.reset(out)
    return vector_env, env, out


def play(vector_env, out, steps, seed=1):
    rng = np.random.default_rng(seed)
    history = []

    def snap(action=None):
        fields = {k: v.copy() for k, v in vars(out).items() if isinstance(v, np.ndarray)}
        history.append({**fields, "obs": out.obs["obs"].copy(), "action": action})

    snap()
    for _ in range(steps):
        action = rng.integers(vector_env.spec.action.nvec, size=(vector_env.rows, 1)).astype(np.int32)
        history[-1]["action"] = action
        vector_env.step(action, out)
        snap(np.zeros((vector_env.rows, 1), np.int32))
    return {name: np.stack([step[name] for step in history]) for name in history[0]}


def test_a_next_step_vector_equals_single_environments():
    vector_env, env, out = native_vector_env(Counting, 3, AutoresetMode.NEXT_STEP)
    single = GymVectorEnv("m:f", Counting, 3, 0, lambda _row: (0, {}))
    single_out = private_step_arrays(single.spec, 3)
    single.reset(single_out)
    many, one = play(vector_env, out, 120), play(single, single_out, 120)
    assert env.calls == 120
    for row in range(3):
        trace = many["obs"][:, row], many["action"][:, row, 0], many["first"][:, row]
        assert counting_errors(*trace) == []
    done = one["episode_done"]
    assert done.any()
    for name in ("objective", "raw_return", "shaped_return", "length", "shaping_version"):  # valid there only
        assert np.array_equal(many.pop(name)[done], one[name][done]), name
    for name in set(many) - {"obs"}:
        equal_nan = {"equal_nan": True} if many[name].dtype.kind == "f" else {}
        assert np.array_equal(many[name], one[name], **equal_nan), name
    assert (many["obs"][..., 1:] == one["obs"][..., 1:]).all()  # without the ids, which depend on seeds


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_vector_that_resets_at_once_loses_the_first_step_of_an_episode_and_nothing_else(mode):
    vector_env, _, out = native_vector_env(Counting, 3, mode)
    got = play(vector_env, out, 200)
    assert got["episode_done"].sum() > 30
    assert (got["episode_done"] == (got["terminated"] | got["truncated"])).all()
    for row in range(3):
        ids, episode, step, _ = got["obs"][:, row].T
        done, first = got["episode_done"][:, row], got["first"][:, row]
        assert len(set(ids)) == 1
        assert (first[1:] == done[:-1]).all()
        assert (step[first][1:] == 1).all()  # the first episode is delivered from its step 0
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
    vector_env, _, out = native_vector_env(OneStep, 2, mode)
    got = play(vector_env, out, 6)
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
    vector_env, env, out = native_vector_env(Rich, 2, mode, lambda row: (3, {"gain": now["gain"] + row}))
    assert vector_env.spec.shaping == {"gain": 1.0}
    for _ in range(4):
        vector_env.step(np.array([[0, 3], [2, 1]], np.int32), out)
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
    vector_env.step(np.zeros((2, 2), np.int32), out)
    assert out.first.all()
    vector_env.step(np.zeros((2, 2), np.int32), out)
    # NEXT_STEP asks when the row is reset; the others reset in the last step, before the change.
    assert out.reward.tolist() == ([5, 6] if mode is AutoresetMode.NEXT_STEP else [2, 3])


class Shaped(Counting):
    """Single environment with shaping. gain: its default value."""

    def __init__(self, gain=1.0):
        super().__init__()
        self.gain = gain

    def get_default_reward_shaping(self):
        return {"gain": self.gain}

    def set_reward_shaping(self, reward_shaping, agent_idx):
        self.gain = reward_shaping["gain"]


class Plain(VectorWrapper):
    """A user's wrapper without shaping."""


class Informed(Counting):
    def set_training_info(self, info):
        raise AssertionError


def test_what_cannot_reach_rows_in_other_processes_is_refused():
    with (
        closing(AsyncVectorEnv([Informed])) as env,
        pytest.raises(EnvSetupError, match=r"AsyncVectorEnv .*\(set_training_info\)"),
    ):
        describe_vector("m:f", env)
    with closing(AsyncVectorEnv([Shaped] * 2)) as env:
        with pytest.raises(EnvSetupError, match=r"m:f: .*AsyncVectorEnv .*shaping"):
            describe_vector("m:f", env)
        with pytest.raises(EnvSetupError, match="Use SyncVectorEnv"):
            NativeVectorEnv("m:f", Plain(env), 0, lambda _row: (0, {}))
        assert len(env.reset(seed=0)[0]) == 2, "it was asked, and not broken"
    with closing(AsyncVectorEnv([Counting])) as env:
        assert describe_vector("m:f", env).shaping == {}
    fast = type("Fast", (Counting,), {"frames_per_step": 4})
    with closing(AsyncVectorEnv([fast])) as env:
        assert describe_vector("m:f", env).frame_skip == 4, "the rows say it, in processes of their own"


def test_vectors_that_do_not_say_enough_are_refused():
    assert describe_vector("m:f", SyncVectorEnv([Shaped, Shaped])).shaping == {"gain": 1.0}
    for other in (Counting, lambda: Shaped(2.0)):
        with pytest.raises(EnvSetupError, match=r"m:f: .*shaping"):
            describe_vector("m:f", SyncVectorEnv([Shaped, other]))
    env = SyncVectorEnv([Counting])
    del env.metadata["autoreset_mode"]
    with pytest.raises(EnvSetupError, match=r"autoreset_mode.*NEXT_STEP, SAME_STEP or DISABLED"):
        describe_vector("m:f", env)


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
        (lambda a: a[4].pop("final_obs", None), r'info\["final_obs"\] '),
        (lambda a: a[4].update(final_obs=None), r'info\["final_obs"\] '),
        (lambda a: a[4].update(final_obs=[]), r'info\["final_obs"\] .*list of 0'),
        (lambda a: a[4].update(final_info=None), r'info\["final_info"\].*None'),
        (lambda a: a[4].update(final_info=[{}]), r'info\["final_info"\].*list of 1'),
        (lambda a: a[4].update(true_objective=[[1], [1, 2]]), "infos.*true_objective"),
        (lambda a: a[4].update(true_objective=np.ones(2), _true_objective=None), "infos.*true_objective"),
        (lambda a: a.__setitem__(2, [[True], [True, False]]), "terminations .*True or False"),
        (lambda a: a.__setitem__(0, a[0][:, :3]), r"shape \(2, 4\), .*shape \(2, 3\)"),
        (lambda a: a.__setitem__(0, a[0] * np.nan), "finite"),
        (lambda a: a.__setitem__(0, a[0].astype(str)), "numbers.*dtype"),
        (lambda a: a.__setitem__(1, a[1] * np.inf), "rewards .*finite"),
        (lambda a: a.__setitem__(1, a[1] + 1e300), "rewards .*finite"),
        (lambda a: a.__setitem__(1, a[1].astype(str)), "rewards .*numbers"),
        (lambda a: a.__setitem__(1, a[1][:1]), r"rewards .*have shape \(2,\)"),
        (lambda a: a.__setitem__(2, a[2][:1]), r"terminations .*have shape \(2,\)"),
        (lambda a: a.__setitem__(2, a[2].astype(str)), "terminations .*True or False"),
        (lambda a: a.__setitem__(3, a[3] * np.nan), "truncations .*True or False"),
        (lambda a: a.pop(), r"step\(\)"),
    ],
)
def test_a_vector_that_breaks_its_contract_is_named(change, message):
    vector_env = NativeVectorEnv("m:f", Broken(change=change), 0, lambda _row: (0, {}))
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    with pytest.raises(EnvSetupError, match=f"m:f.*{message}"):
        play(vector_env, out, 30)


def test_the_values_of_a_reset_belong_to_no_episode():
    def pay(answer):
        starts = answer[0][:, 2] == 0
        answer[1], answer[2] = answer[1] + 5.0 * starts, answer[2] | starts

    vector_env = NativeVectorEnv("m:f", Broken(AutoresetMode.NEXT_STEP, pay), 0, lambda _row: (0, {}))
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    got = play(vector_env, out, 60)
    assert (got["first"].sum(0) > 3).all()
    assert not got["reward"][got["first"]].any()
    assert not got["terminated"][got["first"]].any()
    lengths = got["length"][got["episode_done"]]
    assert (got["raw_return"][got["episode_done"]] == lengths * (lengths + 1) / 2).all()


class SaysNextStep(SyncVectorEnv):
    """It has another autoreset mode than it declares."""

    def __init__(self, mode):
        super().__init__([lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=mode)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}

    def step(self, actions):
        *answer, info = super().step(actions)
        return *answer, {name: value for name, value in info.items() if not name.startswith("final")}


class ResetsAll(SyncVectorEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class Told(list):
    """A shaping source that keeps the warnings of a vector env."""

    def __call__(self, _row):
        return 0, {}

    def warn(self, text):
        self.append(text)


def warnings_of(env):
    told = Told()
    vector_env = NativeVectorEnv("m:f", env, 0, told)
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    play(vector_env, out, 80)
    return told


def test_a_wrong_autoreset_mode_is_told():
    cart = [lambda: gymnasium.make("CartPole-v1")] * 2
    for mode in AutoresetMode:
        assert warnings_of(SyncVectorEnv(cart, autoreset_mode=mode)) == []
    (text,) = warnings_of(SaysNextStep(AutoresetMode.SAME_STEP))
    assert text.startswith('metadata["autoreset_mode"] may be wrong')
    env = SyncVectorEnv(cart, autoreset_mode=AutoresetMode.SAME_STEP)
    env.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
    (text,) = warnings_of(env)
    assert '"final_obs"' in text
    (text,) = warnings_of(ResetsAll(cart, autoreset_mode=AutoresetMode.DISABLED))
    assert text.startswith('reset(options={"reset_mask": ...}) changes')


class TimesOut(Counting):
    """Every episode is truncated."""

    def step(self, action):
        obs, reward, over, cut, info = super().step(action)
        return obs, reward, False, over or cut, info


class Still(TimesOut):
    """The observation never changes."""

    def reset(self, **options):
        return 0 * super().reset(**options)[0], {}

    def step(self, action):
        obs, *rest = super().step(action)
        return 0 * obs, *rest


class FirstAsFinal(SyncVectorEnv):
    """Its final observations are the first ones of the next episodes."""

    def step(self, actions):
        obs, *rest, info = super().step(actions)
        return obs, *rest, info | ({"final_obs": obs.copy()} if "final_obs" in info else {})


class Begins(TimesOut):
    """All episodes begin with zeros."""

    def reset(self, **options):
        return 0 * super().reset(**options)[0], {}


@pytest.mark.parametrize(
    ("kind", "vector", "said"),
    [
        (TimesOut, SyncVectorEnv, False),
        (TimesOut, FirstAsFinal, True),
        (Begins, SyncVectorEnv, False),
        (Begins, FirstAsFinal, True),
        (Still, FirstAsFinal, False),
    ],
)
def test_final_observations_of_the_next_episode_are_told(kind, vector, said):
    told = warnings_of(vector([kind] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    assert ["wrong final" in text for text in told] == [True] * said


class NeverResets(SyncVectorEnv):
    """A reset with a mask has no effect. The environments go on."""

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask")
        return super().reset(seed=seed) if mask is None else (self._observations.copy(), {})

    def step(self, actions):
        self._autoreset_envs[:] = False
        return super().step(actions)


class Ends(Counting):
    """Terminated in every third step."""

    def reset(self, **options):
        self.t = 0
        return super().reset(**options)

    def step(self, action):
        self.t += 1
        obs, reward, *_ = super().step(action)
        return obs + np.float32(0.5 * self.t), reward, self.t % 3 == 0, False, {}


class Blank(Ends):
    """Episodes begin and end with zeros."""

    def reset(self, **options):
        return 0 * super().reset(**options)[0], {}

    def step(self, action):
        obs, reward, over, *rest = super().step(action)
        return (1 - over) * obs, reward, over, *rest


@pytest.mark.parametrize(
    ("kind", "vector", "said"),
    [
        (Ends, SyncVectorEnv, False),
        (Ends, NeverResets, True),
        (Blank, SyncVectorEnv, False),
    ],
)
def test_a_masked_reset_without_effect_is_told(kind, vector, said):
    told = warnings_of(vector([kind] * 2, autoreset_mode=AutoresetMode.DISABLED))
    assert ["no reset" in text for text in told] == [True] * said


class NewSpaces(SyncVectorEnv):
    def reset(self, *, seed=None, options=None):
        self.single_observation_space = Box(-9, 1, (4,))
        return super().reset(seed=seed)


def test_spaces_of_a_vector_that_change_are_told():
    (text,) = warnings_of(NewSpaces([Counting] * 2))
    assert "spaces change" in text


@pytest.mark.parametrize("name", ["single_observation_space", "single_action_space", "observation_space"])
def test_a_vector_without_a_space_is_named(name):
    env = SyncVectorEnv([Counting])
    delattr(env, name)
    with pytest.raises(EnvSetupError, match=f"no {name}"):
        describe_vector("m:f", env)


def test_infos_of_all_rows_may_be_a_list():
    def listed(answer):
        if "final_info" in answer[4]:
            answer[4]["final_info"] = [{"true_objective": 3.0}, {"true_objective": 4.0}]

    vector_env = NativeVectorEnv("m:f", Broken(change=listed), 0, lambda _row: (0, {}))
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    got = play(vector_env, out, 5)
    assert got["objective"][got["episode_done"]].tolist() == [3, 4]


def test_a_masked_reset_returns_observations_and_infos():
    class Nothing(SyncVectorEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed) if options is None else None

    with pytest.raises(EnvSetupError, match=r"reset\(\) must return .*None"):
        warnings_of(Nothing([Counting] * 2, autoreset_mode=AutoresetMode.DISABLED))


def test_a_reset_without_options_cannot_take_a_mask():
    env = SyncVectorEnv([Counting], autoreset_mode=AutoresetMode.DISABLED)
    env.reset = lambda *, seed=None: None
    with pytest.raises(EnvSetupError, match=r"reset\(\*, seed=None\).*options"):
        describe_vector("m:f", env)


def test_an_objective_counts_where_its_mask_is_set():
    def give(answer):
        answer[4].update(true_objective=np.array([0.25, 0.75]), _true_objective=np.array([True, False]))

    vector_env = NativeVectorEnv("m:f", Broken(AutoresetMode.NEXT_STEP, give), 0, lambda _row: (0, {}))
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    for _ in range(5):
        vector_env.step(np.zeros((2, 1), np.int32), out)
    assert out.episode_done.all()
    assert out.objective.tolist() == [0.25, 15]


class NoNumber(gymnasium.Env):
    """Its objective is NaN."""

    observation_space, action_space = Box(0, 9, (1,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {"true_objective": np.float32("nan")}


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_an_objective_that_is_nan_is_refused(mode):
    if mode is None:
        vector_env = GymVectorEnv("m:f", NoNumber, 1, 0, lambda _: (0, {}))
    else:
        vector_env = NativeVectorEnv(
            "m:f", SyncVectorEnv([NoNumber], autoreset_mode=mode), 0, lambda _: (0, {})
        )
    out = private_step_arrays(vector_env.spec, 1)
    vector_env.reset(out)
    with pytest.raises(EnvSetupError, match="finite"):
        vector_env.step(np.zeros((1, 1), np.int32), out)
    vector_env.close()


def test_vectors_are_seeded_and_closed_once():
    def start(seed):
        vector_env, _, out = native_vector_env(Counting, 2, AutoresetMode.NEXT_STEP, seed=seed)
        vector_env.close()
        vector_env.close()
        return out.obs["obs"].copy()

    assert (start(1) == start(1)).all()
    assert (start(1) != start(2)).any()
    assert start(1)[0, 0] != start(1)[1, 0]
