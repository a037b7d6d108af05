"""Atari vector envs on real games: lives, scores, resets, truncations, seeds and shaping."""

import re
from dataclasses import replace

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv as AleVectorEnv

from pbt_rl.envs import ale
from pbt_rl.envs.ale import AtariVectorEnv, probe
from pbt_rl.envs.atari import MULTIPLAYER_ONLY, AtariOptions
from pbt_rl.envs.base import private_step_arrays, step_array_specs
from pbt_rl.errors import EnvSetupError

PLAIN = AtariOptions(noop_max=0)
SHAPING = {"score_scale": 1.0, "life_loss_penalty": 0.01}


def make(game, rows=1, seed=0, options=PLAIN, shaping=lambda _row: (0, SHAPING)):
    vector_env = AtariVectorEnv(game, rows, seed, options, shaping)
    out = private_step_arrays(vector_env.spec, rows)
    vector_env.reset(out)
    return vector_env, out


def snapshot(out):
    fields = {k: v.copy() for k, v in vars(out).items() if isinstance(v, np.ndarray)}
    return {"obs": out.obs["obs"].copy(), **fields}


def play(vector_env, out, steps, seed=0):
    """Return the fields of random steps, and the engine's results."""
    rng = np.random.default_rng(seed)
    engine, answers = vector_env._engine, []

    class Spy:
        def step(self, action):
            answers.append(engine.step(action))
            return answers[-1]

    vector_env._engine = Spy()
    history = []
    for _ in range(steps):
        vector_env.step(
            rng.integers(vector_env.spec.action.nvec[0], size=(vector_env.rows, 1)).astype(np.int32), out
        )
        _, score, over, cut, info = answers[-1]
        engine_says = {"score": score.copy(), "over": over | cut, "lives": info["lives"].copy()}
        history.append({**snapshot(out), **engine_says})
    vector_env._engine = engine
    return {name: np.stack([step[name] for step in history]) for name in history[0]}


class Scripted:
    """Engine of one row with equal scores in all steps. lives: lives left after each step."""

    def __init__(self, score, lives):
        self._score, self._lives = np.array([score], np.int32), iter(lives)

    def step(self, _action):
        no = np.array([False])
        lives = {"lives": np.array([next(self._lives)], np.int32)}
        return np.zeros((1, 1, 84, 84), np.uint8), self._score, no, no, lives


@pytest.fixture(scope="module")
def breakout():
    vector_env, out = make("breakout", rows=2)
    start = snapshot(out)
    history = play(vector_env, out, 700)
    vector_env.close()
    assert history["episode_done"].sum() >= 3
    return start, history


def test_reset_delivers_first_and_nothing_else(breakout):
    start, _ = breakout
    assert start["first"].all()
    assert start["obs"].any()
    zero = set(start) - {"first", "obs"}
    assert not any(start[name].any() for name in zero)


def test_a_lost_life_is_terminal_without_an_episodes_end(breakout):
    _, history = breakout
    for row in range(2):
        lost = np.diff(history["lives"][:, row], prepend=5) < 0
        mid_game = lost & (history["lives"][:, row] > 0)
        assert mid_game.sum() >= 8
        assert (history["terminated"][:, row] == lost).all()
        assert not history["episode_done"][mid_game, row].any()
        assert (history["episode_done"][:, row] == (lost & ~mid_game)).all()


def fired(history):
    """Check whether a step follows a lost life within a game."""
    lost = np.diff(history["lives"], prepend=5, axis=0) < 0
    return np.roll(lost & (history["lives"] > 0), 1, axis=0)


def test_fire_follows_every_lost_life_and_is_no_step_of_the_policy(breakout):
    _, history = breakout
    assert history["first"][fired(history)].all()
    assert not history["reward"][fired(history)].any()


def started(history):
    """Check whether a step is the FIRE that starts a game."""
    after_reset = np.roll(history["episode_done"], 2, axis=0)
    after_reset[:2] = [[True], [False]]
    return after_reset


def test_points_of_the_step_of_fire_are_in_the_objective_but_not_learned():
    """A shot that was fired before the life was lost may hit during the step of FIRE."""
    vector_env, out = make("space_invaders")
    vector_env._engine = Scripted(5, [3, 3, 2, 2, 2])
    history = play(vector_env, out, 5)
    assert history["first"][:, 0].tolist() == [True, False, False, True, False]
    assert history["reward"][:, 0] == pytest.approx([0, 1, 0.99, 0, 1])
    assert history["objective"][:, 0].tolist() == [0, 5, 10, 15, 20]
    assert history["length"][:, 0].tolist() == [0, 1, 2, 2, 3]


def test_the_step_after_a_games_end_is_a_reset_and_nothing_else_is(breakout):
    start, history = breakout
    after_end = np.roll(history["episode_done"], 1, axis=0)
    assert (history["first"] == after_end | started(history) | fired(history)).all()
    assert not history["reward"][after_end].any()
    assert not history["terminated"][after_end].any()
    assert (history["obs"][after_end] == start["obs"][0]).all()
    assert (history["length"][after_end] == 0).all()


def test_the_objective_is_the_unclipped_score_of_the_whole_game(breakout):
    _, history = breakout
    for row in range(2):
        ends = np.flatnonzero(history["episode_done"][:, row])
        for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
            game = slice(start, end + 1)
            assert history["objective"][end, row] == history["score"][game, row].sum()
            assert history["raw_return"][end, row] == history["score"][game, row].sum()
            assert history["length"][end, row] == (~history["first"][game, row]).sum()
            assert history["shaped_return"][end, row] == pytest.approx(history["reward"][game, row].sum())


def test_rewards_are_clipped_or_not_and_scaled():
    def learned(options, shaping):
        vector_env, out = make("ms_pacman", options=options, shaping=lambda _row: (0, shaping))
        return play(vector_env, out, 120)

    shaping = {"score_scale": 2.0, "life_loss_penalty": 0.0}
    clipped = learned(PLAIN, shaping)
    raw = learned(replace(PLAIN, clip_reward=False), shaping)
    assert raw["score"].max() >= 10
    assert (clipped["reward"] == 2 * (clipped["score"] > 0)).all()
    assert (raw["reward"] == 2 * raw["score"]).all()
    assert clipped["objective"][-1] == raw["objective"][-1] == raw["score"].sum()


def test_without_episodic_life_only_the_games_end_is_terminal():
    vector_env, out = make("breakout", options=replace(PLAIN, episodic_life=False))
    history = play(vector_env, out, 400)
    assert (np.diff(history["lives"][:, 0]) < 0).sum() >= 5
    assert (history["terminated"] == history["episode_done"]).all()
    assert history["terminated"].sum() >= 1
    after_end = np.roll(history["episode_done"], 1, axis=0)
    assert (history["first"] == after_end | started(history)).all(), (
        "so the FIRE after a lost life is learned from: what that leads to"
    )


def test_a_cut_game_is_truncated_and_not_terminated():
    vector_env, out = make("pong", options=replace(PLAIN, max_frames_per_episode=40))
    history = play(vector_env, out, 22)
    ends = np.flatnonzero(history["truncated"][:, 0])
    assert ends.tolist() == [9, 20]
    assert not history["terminated"].any()
    assert history["episode_done"][ends, 0].all()
    assert history["first"][ends + 1, 0].all()
    assert (history["length"][ends, 0] == 9).all(), "of ten steps the first was FIRE"


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(sticky):
    options = AtariOptions(repeat_action_probability=sticky)

    def run(seed):
        return play(*make("breakout", rows=2, seed=seed, options=options), 150)

    one, again, other = run(1), run(1), run(2)
    assert all((one[name] == again[name]).all() for name in one)
    assert (one["obs"] != other["obs"]).any()


def test_a_vector_env_resets_again_in_the_middle_of_a_game():
    vector_env, out = make("breakout", rows=2)
    start = snapshot(out)
    play(vector_env, out, 50)
    vector_env.reset(out)
    again = snapshot(out)
    assert all((start[name] == again[name]).all() for name in start)


def test_an_extra_life_is_no_reward_and_zero_lives_left_is_no_lost_life():
    vector_env, out = make("breakout", options=replace(PLAIN, fire_reset=False))
    vector_env._engine = Scripted(0, [6, 5, 1, 0, 0])
    history = play(vector_env, out, 5)
    assert history["reward"][:, 0] == pytest.approx([0, -0.01, -0.04, -0.01, 0])
    assert history["terminated"][:, 0].tolist() == [False, True, True, False, False]


def test_shaping_changes_at_the_next_game_only_and_row_by_row():
    now = {"version": 1, "penalty": 0.5}

    def source(row):
        return 10 * row + now["version"], {"score_scale": 1.0, "life_loss_penalty": now["penalty"] + row}

    vector_env, out = make("breakout", rows=2, shaping=source)
    now.update(version=2, penalty=0.25)
    history = play(vector_env, out, 700)
    for row in range(2):
        ends = np.flatnonzero(history["episode_done"][:, row])
        penalty = np.clip(history["score"][:, row], -1, 1) - history["reward"][:, row]
        lost = history["terminated"][:, row]
        assert (history["shaping_version"][: ends[0] + 1, row] == 10 * row + 1).all()
        assert (history["shaping_version"][ends[0] + 1 :, row] == 10 * row + 2).all()
        assert penalty[: ends[0] + 1][lost[: ends[0] + 1]] == pytest.approx(0.5 + row)
        assert penalty[ends[0] + 1 :][lost[ends[0] + 1 :]] == pytest.approx(0.25 + row)


def test_the_spec_matches_the_delivered_arrays():
    spec = probe("breakout", AtariOptions(frame_stack=3, frame_skip=2))
    assert (spec.env_id, spec.frame_skip, spec.frame_stack) == ("atari/breakout", 2, 3)
    assert spec.action.nvec == (4,)
    assert spec.shaping == SHAPING
    assert step_array_specs(spec)["obs.obs"].shape == (84, 84)
    assert probe("breakout", AtariOptions(full_action_space=True)).action.nvec == (18,)
    assert "life_loss_penalty" not in probe("pong", AtariOptions()).shaping


@pytest.mark.parametrize("game", ["backgammon", "video_checkers"])
def test_a_game_without_a_no_op_action_starts_as_others_do(game):
    vector_env, out = make(game, rows=4, options=AtariOptions(noop_max=30))
    assert play(vector_env, out, 3)["first"].tolist() == [4 * [True], 4 * [False], 4 * [False]]


def test_a_game_without_fire_starts_at_once():
    vector_env, out = make("ms_pacman", options=AtariOptions(noop_max=30))
    assert not play(vector_env, out, 1)["first"].any()


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("breakout", AtariOptions()),
        ("breakout", AtariOptions(episodic_life=False, full_action_space=True, frame_skip=3)),
        ("asterix", AtariOptions(frame_stack=1)),
    ],
)
def test_who_plays_as_the_text_says_sees_what_a_policy_sees(game, options):
    """By ale-py alone, after the text: the frames, where episodes begin for the policy, and the score."""
    from pbt_rl.play.export.card import game_played

    text = game_played(game, options)
    (made,) = re.findall(r"`ale_py\.vector_env\.(.*)`: grey", text)
    env = eval(made, {"AtariVectorEnv": AleVectorEnv, "N": 1})
    fire = re.search(r"FIRE \((\d+)\)", text)
    begins = "; this also begins an episode for the policy." in text
    vector_env, out = make(game, options=options)
    frames, info = env.reset(seed=vector_env.seed_R)
    rng, lives, press, scores, score = np.random.default_rng(0), info["lives"][0], bool(fire), [], 0.0
    starts, done = press, False
    while len(scores) < 2:
        assert np.array_equal(frames[:, 0], out.obs["obs"])
        chosen = rng.integers(vector_env.spec.action.nvec[0], size=(1, 1)).astype(np.int32)
        vector_env.step(chosen, out)
        first = done or (press and (starts or begins))
        frames, rewards, over, cut, info = env.step(np.array([int(fire[1])]) if press else chosen[:, 0])
        assert out.first[0] == first
        if done:
            score, lives, press = 0.0, info["lives"][0], bool(fire)
            starts, done = press, False
            continue
        score += 0 if starts else rewards[0]
        press, starts = bool(fire) and 0 < info["lives"][0] < lives, False
        lives, done = info["lives"][0], bool(over[0] or cut[0])
        assert out.episode_done[0] == done
        if done:
            scores.append(score)
            assert out.objective[0] == score
            press = False
    vector_env.close()
    assert ("FIRE" in text) == (game == "breakout")


def test_games_are_listed_without_those_for_several_players():
    games = ale.names()
    assert {"pong", "breakout", "montezuma_revenge"} <= set(games)
    assert not MULTIPLAYER_ONLY & set(games)
    assert len(games) > 100
    with pytest.raises(EnvSetupError, match=r"atari/joust.*players"):
        probe("joust", AtariOptions())


def test_a_game_that_would_not_start_is_refused():
    with pytest.raises(EnvSetupError, match=r"--atari\.max-frames-per-episode 4 .*frame-skip 4"):
        AtariOptions(max_frames_per_episode=4)
    assert AtariOptions(max_frames_per_episode=5)
