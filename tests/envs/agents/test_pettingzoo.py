"""PettingZoo: both APIs, its own environments, and unusable environments."""

import numpy as np
import pytest
from gymnasium import spaces

from pbt_rl.cli.check import check
from pbt_rl.envs import lookup
from pbt_rl.envs.agents.multi_agent import MultiAgentVectorEnv
from pbt_rl.envs.agents.tables import KIND, table_of
from pbt_rl.envs.base import default_shaping_source, private_step_arrays, read_stats
from pbt_rl.envs.lookup import EnvOptions
from pbt_rl.errors import EnvSetupError

pytest.importorskip("pettingzoo")
PLAIN = EnvOptions()


def vector_env_of(env, rows=2, options=PLAIN):
    spec = lookup.probe(env, options)
    vector_env = lookup.make_vector_env(env, rows, 0, options, default_shaping_source(spec))
    out = private_step_arrays(spec, rows)
    vector_env.reset(out)
    return vector_env, out


def play(vector_env, out, *moves):
    """Row -> rewards of each step; both rows get the same action, only the mover's counts."""
    rewards = []
    for move in moves:
        vector_env.step(np.full((vector_env.rows, 1), move, np.int32), out)
        rewards.append(out.reward.tolist())
    return rewards


def test_connect_four_rewards_reach_the_move_that_earned_them():
    vector_env, out = vector_env_of("pettingzoo/connect_four_v3")
    masks = []
    for _ in range(3):
        for move in (0, 1):
            masks.append(out.obs["action_mask"].any(1).tolist())
            assert play(vector_env, out, move) == [[0, 0]]
    assert masks == [[True, False], [False, True]] * 3, "in turns, and who waits has no choice"
    assert play(vector_env, out, 0) == [[1, -1]], (
        "agent 0 has four in its column; agent 1 waits, and is told at once"
    )
    assert (out.terminated & out.episode_done).all()
    assert out.objective.tolist() == [1, -1]
    assert out.length.tolist() == [7, 7]
    np.testing.assert_array_equal(out.obs["observation"][0, ..., 0], out.obs["observation"][1, ..., 1])
    assert out.obs["observation"][0, :, 0, 0].sum() == 4, "the final position is shown"
    play(vector_env, out, 0)
    assert out.first.all()
    assert out.obs["observation"].sum() == 0
    vector_env.close()


def test_a_full_column_is_masked():
    vector_env, out = vector_env_of("pettingzoo/classic/connect_four_v3")
    play(vector_env, out, 3, 3, 3, 3, 3, 3)
    assert out.obs["action_mask"].tolist() == [[1, 1, 1, 0, 1, 1, 1], [0] * 7]
    vector_env.close()


def test_random_games_by_the_mask_are_legal_and_of_sum_zero():
    vector_env, out = vector_env_of("pettingzoo/tictactoe_v3", rows=8)
    rng, ended = np.random.default_rng(0), 0
    for _ in range(300):
        mask = out.obs["action_mask"]
        vector_env.step((rng.random(mask.shape) * mask).argmax(1).astype(np.int32)[:, None], out)
        games = out.objective.reshape(4, 2)[out.episode_done[::2]]
        assert (games.sum(1) == 0).all()
        ended += len(games)
    assert ended > 100
    vector_env.close()


def test_parallel_games_have_no_mask_and_options_reach_them():
    vector_env, out = vector_env_of(
        "pettingzoo/rps_v2", options=EnvOptions(keywords={"num_actions": 5, "max_cycles": 4})
    )
    assert vector_env.spec.action.nvec == (5,)
    assert set(vector_env.spec.obs) == {"obs"}
    vector_env.step(np.array([[0], [1]], np.int32), out)
    assert out.reward.tolist() == [-1, 1], "paper (1) beats rock (0)"
    play(vector_env, out, 0, 0, 0)
    assert (out.truncated & out.episode_done).all()
    vector_env.close()


def test_the_same_seed_gives_the_same_games():
    def hands(seed):
        spec = lookup.probe("pettingzoo/leduc_holdem_v4", PLAIN)
        vector_env = lookup.make_vector_env(
            "pettingzoo/leduc_holdem_v4", 8, seed, PLAIN, default_shaping_source(spec)
        )
        out = private_step_arrays(spec, 8)
        vector_env.reset(out)
        vector_env.close()
        return out.obs["observation"].tobytes()

    assert hands(1) == hands(1) != hands(2)


class Alone:
    """Two agents, parallel API. Agent b leaves after its first step; a goes on for three."""

    def __init__(self, sizes=(3, 3), quiet=False):
        self.possible_agents = ["a", "b"]
        self.sizes, self.quiet = dict(zip("ab", sizes, strict=True)), quiet

    def observation_space(self, agent):
        return spaces.Box(-1, 99, (self.sizes[agent],))

    def action_space(self, agent):
        return spaces.Discrete(4, start=1)

    def reset(self, seed=None, options=None):
        self.agents, self.t = ["a", "b"], 0
        return self.see(), {}

    def see(self):
        return {n: np.full(self.sizes[n], self.t, np.float32) for n in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), "who has left is not asked"
        assert all(1 <= action <= 4 for action in actions.values())
        self.t += 1
        rewards, seen = dict(actions), self.see()
        gone = {"b"} if self.t == 1 else set(self.agents) if self.t == 3 else set()
        terminations = {n: n in gone and not self.quiet for n in self.agents}
        told = {"true_objective": 7.0, "episode_extra_stats": {"moves": self.t}}
        infos = {"b": told} if "b" in gone else {}
        self.agents = [n for n in self.agents if n not in gone]
        if self.quiet:
            seen = {n: x for n, x in seen.items() if n in self.agents}
        return seen, rewards, terminations, dict.fromkeys(terminations, False), infos

    def close(self):
        pass


class Slots(Alone):
    """The same in turns (AEC): the mover earns 1 and costs the other 1; b leaves after its first move."""

    def reset(self, seed=None, options=None):
        super().reset()
        self.agent_selection = "a"
        self.rewards = dict.fromkeys("ab", 0)
        self.terminations, self.truncations = dict.fromkeys("ab", False), dict.fromkeys("ab", False)
        self.infos = {n: {} for n in "ab"}
        self.none = 0

    def agent_iter(self):
        raise AssertionError

    def observe(self, agent):
        return np.full(3, self.t, np.float32)

    def step(self, action):
        mover, other = self.agent_selection, "b" if self.agent_selection == "a" else "a"
        if self.terminations[mover] or self.truncations[mover]:
            assert action is None
            self.none += 1
            self.agents.remove(mover)
            self.agent_selection = self.agents[0] if self.agents else mover
            return
        self.t += 1
        self.rewards = {mover: 1, other: -1 if other in self.agents else 0}
        if mover == "b":
            self.terminations["b"] = True
            self.infos["b"] = {"true_objective": 7.0, "episode_extra_stats": {"moves": self.t}}
        elif self.t > 3:
            self.truncations["a"] = True
        elif "b" in self.agents:
            self.agent_selection = "b"


class Told(list):
    """A shaping source that keeps the warnings of a vector env."""

    def __call__(self, _row):
        return 0, {}

    def warn(self, text):
        self.append(text)


def steps_of(env, count):
    """What is seen in each step, the last step, and in turns each agent's turn and number of choices before it."""
    vector_env = MultiAgentVectorEnv(lambda: table_of("own", env), 2, 0, lambda _row: (0, {}))
    out = private_step_arrays(vector_env.spec, 2)
    vector_env.reset(out)
    seen, turns = [], []
    for _ in range(count):
        if "turn" in out.obs:
            turns.append((out.obs["turn"][:, 0].tolist(), out.obs["action_mask"].sum(1).tolist()))
        vector_env.step(np.array([[0], [2]], np.int32), out)
        told = (out.reward, out.terminated, out.truncated, out.first, out.episode_done)
        seen.append([x.tolist() for x in told])
    return seen, out, turns


N, Y = False, True


def test_agents_that_leave_wait_for_the_others():
    seen, out, _ = steps_of(Alone(), 3)
    assert seen == [
        [[1, 3], [N, Y], [N, N], [N, N], [N, N]],
        [[1, 0], [N, N], [N, N], [N, Y], [N, N]],
        [[1, 0], [Y, N], [N, N], [N, Y], [Y, Y]],
    ]
    assert (out.objective.tolist(), out.length.tolist()) == ([3, 7], [3, 1])
    assert [read_stats(out, row) for row in (0, 1)] == [{}, {"moves": 1.0}]


class PaysLate(Alone):
    """Both agents get a reward after agent b has left."""

    def step(self, actions):
        seen, rewards, *ends, infos = super().step(actions)
        over = {"a": {}, "b": {"true_objective": 9.0}} if self.t == 3 else {}
        return seen, (dict.fromkeys("ab", 5) if self.t == 3 else rewards), *ends, infos | over


class PaysLateInTurns(Slots):
    def step(self, action):
        super().step(action)
        if self.agent_selection == "a" and self.truncations["a"]:
            self.rewards = dict.fromkeys("ab", 5)


def test_a_reward_for_an_agent_that_has_left_counts_for_its_return_and_is_learned_from_in_the_next_game():
    seen, out, _ = steps_of(PaysLate(), 3)
    assert seen[-1] == [[5, 0], [Y, N], [N, N], [N, Y], [Y, Y]]
    assert (out.objective.tolist(), out.raw_return.tolist(), out.length.tolist()) == ([7, 9], [7, 8], [3, 1])
    seen, out, _ = steps_of(PaysLate(), 7)  # the fourth step begins the next episode
    assert seen[4:] == [
        [[1, 3], [N, N], [N, N], [N, N], [N, N]],
        [[1, 0], [N, N], [N, N], [N, N], [N, N]],
        [[5, 5], [Y, Y], [N, N], [N, N], [Y, Y]],
    ]
    assert (out.raw_return.tolist(), out.length.tolist()) == ([7, 8], [3, 3])


def test_the_same_holds_for_turns():
    seen, out, _ = steps_of(PaysLateInTurns(), 4)
    assert seen[-1] == [[5, 0], [N, N], [Y, N], [N, Y], [Y, Y]]
    assert out.raw_return.tolist() == [6, 5]
    seen, out, turns = steps_of(PaysLateInTurns(), 9)
    assert seen[6:] == [
        [[-1, 1], [N, N], [N, N], [N, N], [N, N]],
        [[1, 0], [N, N], [N, N], [N, N], [N, N]],
        [[5, 5], [N, N], [Y, Y], [N, N], [Y, Y]],
    ]
    assert turns[-2:] == [([1, 0], [4, 0])] * 2, "who has left makes no move"
    assert out.raw_return.tolist() == [6, 5]


def test_games_that_cannot_be_used():
    with pytest.raises(EnvSetupError, match=r"\bb is missing"):
        steps_of(Alone(quiet=True), 3)
    with pytest.raises(EnvSetupError, match=r"a has Box.*, b has Box"):
        steps_of(Alone(sizes=(3, 4)), 1)
    with pytest.raises(EnvSetupError, match=r"connect_four_v3 .*columns"):
        lookup.probe("pettingzoo/connect_four_v3", EnvOptions(keywords={"columns": 9}))


class Wrong(Alone):
    """Alone, but for its results: change(observations, rewards, terminations, truncations, infos)."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def step(self, actions):
        return self.change(*super().step(actions))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda o, r, te, tr, i: (o, r, False, tr, i), "terminations .*a, b, got False"),
        (lambda o, r, te, tr, i: (o, r, te, None, i), "truncations .*a, b, got None"),
        (lambda o, r, te, tr, i: (o, r, {"__all__": False}, tr, i), "terminations .*a, b, .*__all__"),
        (lambda o, r, te, tr, i: (o, r, te, dict.fromkeys(tr, "no"), i), "truncations .*'no'"),
        (lambda o, r, te, tr, i: (o, te, r, tr, i), "terminations .*True or False, got .*3"),
        (lambda o, r, te, tr, i: (o, r, te, dict.fromkeys(tr, 0.01), i), "truncations .*0.01"),
        (lambda o, r, te, tr, i: (o, r, te | {"b": None}, tr, i), "terminations .*None"),
        (lambda o, r, te, tr, i: (o, [1, 1], te, tr, i), "rewards .*a, b, .*list"),
        (lambda o, r, te, tr, i: (o, {"a": 1, "B": 1}, te, tr, i), "rewards .*a, b, .*'B'"),
        (lambda o, r, te, tr, i: (o, r, te, tr, None), "infos .*a, b, got None"),
        (lambda o, r, te, tr, i: (o, r, te, tr, {"true_objective": 1}), "infos .*a, b, .*true_objective"),
    ],
)
def test_results_that_are_no_dicts_by_agent_are_one_clear_error(change, said):
    with pytest.raises(EnvSetupError, match=said):
        steps_of(Wrong(change), 3)


@pytest.mark.parametrize("flags", ["terminations", "truncations"])
def test_a_flag_of_a_turn_based_game_is_true_or_false(flags):
    class Floats(Slots):
        def step(self, action):
            super().step(action)
            setattr(self, flags, {"a": 0.5, "b": False})

    with pytest.raises(EnvSetupError, match=rf"{flags} .*True or False, got 0\.5"):
        steps_of(Floats(), 1)


class NeverRemoved(Slots):
    def step(self, action):
        if action is not None:
            super().step(action)


def with_value(name, value, at):
    """Slots whose attribute has another value from a step on; 0: from the reset on."""

    class Own(Slots):
        def reset(self, seed=None, options=None):
            super().reset()
            self.spoil()

        def step(self, action):
            super().step(action)
            self.spoil()

        def spoil(self):
            if self.t >= at:
                setattr(self, name, value)

    return Own


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("agent_selection", None, "agent_selection .*None"),
        ("agent_selection", "x", "agent_selection .*'x'"),
        ("infos", None, "infos .*None"),
        ("terminations", None, "terminations .*None"),
        ("truncations", "no", "truncations .*'no'"),
    ],
)
def test_a_turn_based_game_without_its_attributes_is_one_clear_error(name, value, said, at):
    with pytest.raises(EnvSetupError, match=said):
        steps_of(with_value(name, value, at)(), 3)


def test_a_turn_based_game_that_never_removes_an_agent_is_one_clear_error():
    with pytest.raises(EnvSetupError, match=r"step\(None\) .*'b'"):
        steps_of(NeverRemoved(), 3)


def test_one_object_in_every_call_of_the_factory_is_refused():
    game = Alone()
    with pytest.raises(EnvSetupError, match="twice"):
        KIND.make_vector_env("own", lambda: game, 4, 0, Told())


def test_close_is_optional(monkeypatch, capsys):
    monkeypatch.setattr(Alone, "close", None)
    lookup.probe(f"{__name__}:Alone", PLAIN)
    assert capsys.readouterr().err == ""


def test_results_may_have_more_than_the_agents():
    expected = steps_of(Alone(), 3)[0]
    seen, _, _ = steps_of(Wrong(lambda o, r, te, tr, i: (o, r, te | {"__all__": False}, tr, i)), 3)
    assert seen == expected


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"reset": lambda self: ({}, {})}, r"reset\(\) .*seed"),
        ({"observation_space": spaces.Discrete(3)}, "observation_space .*method"),
        ({"action_space": {"a": spaces.Discrete(3)}}, "action_space .*method"),
        ({"__init__": lambda self: vars(self).update(possible_agents=["a", "a"])}, "twice"),
        ({"see": lambda self: self.agents.clear() or {}}, "attribute agents"),
    ],
)
def test_games_without_the_interface_are_one_clear_error(attributes, said):
    with pytest.raises(EnvSetupError, match=said):
        steps_of(type("Own", (Alone,), attributes)(), 1)


class Masked(Alone):
    metadata = {"action_mask": True}  # noqa: RUF012 - as Gymnasium has it
    mask = (1, 1, 0, 0)

    def reset(self, seed=None, options=None):
        return super().reset()[0], {n: {"action_mask": self.mask} for n in "ab"}


@pytest.mark.parametrize("mask", [[0, -1e9, 0, 0], [0.5, 1, 1, 1], [1, 2, 0, 0], [1, 1], [1, [1, 1]]])
def test_a_mask_of_other_numbers_is_refused(mask):
    with pytest.raises(EnvSetupError, match="mask must have 4 numbers"):
        steps_of(type("Own", (Masked,), {"mask": mask})(), 1)


class MaskedInTurns(Slots):
    metadata = Masked.metadata

    def reset(self, seed=None, options=None):
        super().reset()
        self.infos["a"] = {"action_mask": Masked.mask}


class MaskedInObs(Alone):
    def observation_space(self, agent):
        return spaces.Dict(obs=super().observation_space(agent), action_mask=spaces.MultiBinary(4))

    def see(self):
        masks = {} if self.t else {"action_mask": Masked.mask}
        return {n: {"obs": seen} | masks for n, seen in super().see().items()}


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Masked, "info dict of a "), (MaskedInTurns, "info dict of b "), (MaskedInObs, "observation of a ")],
)
def test_a_mask_that_is_missing_in_a_step_is_refused(kind, said):
    with pytest.raises(EnvSetupError, match=f'{said}.*"action_mask"'):
        steps_of(kind(), 1)


def test_a_mask_is_optional_in_the_last_step_of_an_agent():
    class OneStep(MaskedInObs):
        def step(self, actions):
            self.t = 2
            return super().step(actions)

    assert steps_of(OneStep(), 1)[1].episode_done.all()


def test_turns_go_on_without_those_that_left():
    seen, out, turns = steps_of(Slots(), 4)
    assert turns[:3] == [([1, 0], [4, 0]), ([0, 1], [0, 4]), ([1, 0], [4, 0])]
    assert seen == [
        [[1, -1], [N, N], [N, N], [N, N], [N, N]],
        [[-1, 1], [N, Y], [N, N], [N, N], [N, N]],
        [[1, 0], [N, N], [N, N], [N, Y], [N, N]],
        [[1, 0], [N, N], [Y, N], [N, Y], [Y, Y]],
    ]
    assert out.objective.tolist() == [2, 7]
    assert [read_stats(out, row) for row in (0, 1)] == [{}, {"moves": 2.0}]


class Drawn(Alone):
    """Alone without mistakes: both agents leave in the third step, by a time limit."""

    def reset(self, seed=None, options=None):
        super().reset()
        self.t = float(DRAWN.uniform(0, 0.5))
        return self.see(), {}

    def step(self, actions):
        seen, rewards, *_ = super().step(actions)
        over = self.t >= 3
        self.agents = [] if over else ["a", "b"]
        return seen, rewards, dict.fromkeys("ab", False), dict.fromkeys("ab", over), {}

    def see(self):
        return {n: np.full(self.sizes[n], self.t, np.float32) for n in "ab"}


DRAWN = np.random.default_rng(0)


class DrawnInTurns(Slots):
    def observe(self, agent):
        return np.full(3, self.t, self.dtype)

    dtype = np.float32

    def step(self, action):
        super().step(action)
        self.infos = {"a": {}, "b": {}}


class FirstInsteadOfLast(Drawn):
    def step(self, actions):
        _, rewards, *flags, infos = super().step(actions)
        return self.reset()[0] if not self.agents else self.see(), rewards, *flags, infos


class NewSpaces(Drawn):
    def observation_space(self, agent):
        return spaces.Box(-1, 99 + getattr(self, "t", 0), (3,))


class Unpaid(Drawn):
    def step(self, actions):
        seen, rewards, *flags, infos = super().step(actions)
        return seen, {"a": rewards["a"]}, *flags, infos


class Clipped(Drawn):
    def observation_space(self, agent):
        return spaces.Box(0, 1, (40, 40, 1), np.float32)

    def see(self):
        return {n: np.full((40, 40, 1), 200, np.float32) for n in "ab"}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Drawn, ""),
        (DrawnInTurns, ""),
        (type("Wide", (Drawn,), {"see": lambda self: dict.fromkeys("ab", np.zeros(3))}), "float64"),
        (type("Wide", (DrawnInTurns,), {"dtype": np.float64}), "float64"),
        (Clipped, "picture 'obs' is clipped"),
        (NewSpaces, "spaces change"),
        (FirstInsteadOfLast, "missing final observation"),
        (Unpaid, "no reward for b"),
    ],
)
def test_bugs_without_an_error_are_told(kind, said):
    told = Told()
    vector_env = MultiAgentVectorEnv(lambda: table_of("own", kind()), 4, 0, told)
    out = private_step_arrays(vector_env.spec, 4)
    vector_env.reset(out)
    play(vector_env, out, *[0] * 12)
    assert out.obs
    assert [said in text for text in told] == [True] * bool(said)


@pytest.mark.parametrize("name", ["connect_four_v3", "rps_v2", "leduc_holdem_v4", "chess_v6"])
def test_own_games_of_pettingzoo_have_no_bugs(name):
    report = check(f"pettingzoo/{name}", PLAIN, 300)
    assert report.mistakes == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("pettingzoo/conect_four_v3", "pettingzoo/classic/connect_four_v3"),
        ("pettingzoo/nothing_like_it", "pettingzoo/nothing_like_it "),
        ("pettingzoo/classic/connect_four_v2", "pettingzoo/classic/connect_four_v3"),
    ],
)
def test_unknown_games(env, said):
    with pytest.raises(EnvSetupError, match=said):
        lookup.probe(env, PLAIN)
