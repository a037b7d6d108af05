"""Rows start apart from each other, and neither what was played at random nor what was cut short counts for anybody."""

import json

import gymnasium
import numpy as np
from gymnasium import spaces

from pbt_rl.actors.actor import UNCOUNTED_VERSION, Actor
from pbt_rl.cli.train import parse_train
from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.gym import GymUnit
from pbt_rl.run.memory import Memory, Start
from pbt_rl.run.plan import Machine
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.train import train

OPTIONS = ("--num-policies=2", "--envs-per-unit=2", "--actors=2", "--devices=cpu")


def start(env, steps):
    config, _ = parse_train([f"--env={env}", f"--decorrelate-steps={steps}", *OPTIONS])
    facts = ResolvedRun.resolve(config, Machine(2, 0))
    memory = Memory(facts, Start.fresh(facts.plan, facts.controller().initial(2)))
    actors = [Actor(record.setup) for record in memory.actors]
    for actor in actors:
        assert actor.turn()
    return memory, actors, [box for record in memory.actors for box in record.boxes]


def test_units_start_apart_and_show_a_beginning():
    memory, actors, boxes = start("toy/identity?length=40", 40)
    for box in boxes:
        assert box.step.first.all()
        assert not box.step.reward.any()
        assert not box.step.episode_done.any()
    ended: list[list[int]] = [[] for _ in boxes]
    versions: list[set[int]] = [set() for _ in boxes]
    for step in range(1, 82):
        for box in boxes:
            box.action[:] = 0
            box.header[1] += 1
        for actor in actors:
            assert actor.turn()
        for number, box in enumerate(boxes):
            assert box.step.first.all() == (step - 1 in ended[number])
            if box.step.episode_done.all():
                ended[number].append(step)
                versions[number] |= set(box.step.shaping_version.tolist())
    assert ended == [[40, 81], [30, 71], [20, 61], [10, 51]]
    assert versions == [{0}, *[{UNCOUNTED_VERSION, 0}] * 3]
    memory.close()


def test_masks_are_obeyed_and_equal_seeds_play_alike():
    shown = []
    for _ in range(2):
        memory, _, boxes = start("toy/masked", 50)
        shown.append(np.stack([box.step.obs["obs"].copy() for box in boxes]))
        memory.close()
    assert np.array_equal(*shown)


def test_a_run_counts_no_episode_that_was_begun_at_random(tmp_path):
    objectives = []
    for steps in (0, 160):
        name = f"x{steps}"
        arguments = ("--env=toy/shaped?length=160", f"--decorrelate-steps={steps}", *OPTIONS)
        objectives.append([member["episodes"] for member in members_of_a_run(tmp_path, name, *arguments)])
    assert all(early >= late > 0 for early, late in zip(*objectives, strict=True)), objectives


LIMIT = 40


class Endless(gymnasium.Env):
    """Gives 1 in every step, and ends by a limit alone."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


def limited():
    return gymnasium.wrappers.TimeLimit(Endless(), LIMIT)


def play(unit, steps):
    """Return of each episode that ended: (row, step, length, truncated)."""
    out, ended = private_step_arrays(unit.spec, unit.rows), []
    unit.reset(out)
    for step in range(1, steps):
        unit.step(np.zeros((unit.rows, 1), np.int32), out)
        rows = np.flatnonzero(out.episode_done)
        ended += [(row, step, out.length[row], out.truncated[row]) for row in rows]
    return ended


def test_first_episodes_are_cut_at_drawn_steps_and_later_ones_whole():
    rows = 200
    unit = GymUnit("x:y", limited, rows, 0, lambda _row: (0, {}))
    assert unit.spread_phases(np.random.default_rng(0))
    ended = play(unit, 3 * LIMIT)
    first = [next(end for end in ended if end[0] == row) for row in range(rows)]
    cut = np.array([step for _, step, *_ in first])
    assert cut.min() <= 3
    assert cut.max() <= LIMIT
    assert abs(cut.mean() - LIMIT / 2) < 4
    assert all(truncated for *_, truncated in ended)
    assert {length for end in ended for length in [end[2]] if end not in first} == {LIMIT}

    whole = GymUnit("x:y", Endless, 2, 0, lambda _row: (0, {}))
    assert not whole.spread_phases(np.random.default_rng(0)), "its limit is not known"
    assert play(whole, 3 * LIMIT) == []


def members_of_a_run(tmp_path, name, *options):
    arguments = ["--mode=serial", f"--out={tmp_path}", f"--name={name}", "--train-for-frames=1500", *options]
    assert train(parse_train(arguments)[0]) == 0
    return json.loads((tmp_path / name / "summary.json").read_text())["members"]


def test_a_run_counts_no_episode_that_was_cut_short(tmp_path):
    options = (f"--env={__name__}:limited", "--num-policies=1", "--envs-per-unit=4")
    (cut,) = members_of_a_run(tmp_path, "cut", *options)
    assert cut["objective"] == LIMIT, "a first episode, of half that, is among them"
    assert members_of_a_run(tmp_path, "again", *options) == [cut]
