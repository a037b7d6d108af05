"""Doom scenarios on the real engine: steps, seeds, shaping, time limit, and the end of all engine processes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.helpers import played

pytest.importorskip("vizdoom", reason="the extra `vizdoom` is not installed")

import vizdoom

from pbt_rl.envs.doom.game import PICTURE, SCREEN, shrink
from pbt_rl.envs.doom.scenarios import EVENTS, SCENARIOS
from pbt_rl.envs.doom.vector_env import FRAME_SKIP, DoomVectorEnv, names, probe
from pbt_rl.errors import EnvSetupError

STILL = {"basic": (0, 0), "deadly_corridor": (0, 0, 0, 0)}


class Played(played.Played):
    """Vector env of a scenario. Missing coefficients are 0."""

    def __init__(self, name, rows=1, seed=0, **shaping):
        self.values = dict.fromkeys(SCENARIOS[name].shaping, 0.0) | shaping
        self.version = 0
        super().__init__(DoomVectorEnv(name, rows, seed, lambda _row: (self.version, self.values)))

    def variable(self, name):
        return self.vector_env._games.running[0].get_game_variable(getattr(vizdoom.GameVariable, name))


@pytest.mark.parametrize("name", [name for name in names() if SCENARIOS[name].agents == 1])
def test_every_scenario_starts_and_steps_as_probed(name):
    with Played(name) as game:
        assert game.vector_env.spec == probe(name)
        start = game.steps[0]
        assert start["first"].all()
        assert start["measurements"][0, 0] > 0.9  # the acid hurts in the first step
        assert start["obs"].std() > 5
        seen = game.random(4)
        assert (seen["obs"][1:] != seen["obs"][:-1]).any()
        assert set(game.vector_env.spec.shaping) <= {*EVENTS, "reward"}


@pytest.mark.parametrize(("name", "episodes"), [("defend_the_center", 2), ("deathmatch_bots", 0)])
def test_equal_seeds_give_equal_episodes_and_different_seeds_different_ones(name, episodes):
    histories = []
    for seed in (1, 1, 2):
        with Played(name, rows=2, seed=seed) as game:
            histories.append(game.random(150))
    one, again, other = histories
    assert one["episode_done"].sum() >= episodes  # so that the second episodes are compared too
    for field, array in one.items():
        np.testing.assert_array_equal(array, again[field])
    assert (one["obs"] != other["obs"]).any()
    assert (one["obs"][:, 0] != one["obs"][:, 1]).any()


def test_time_truncates_with_a_picture_of_its_own_and_the_next_step_resets():
    with Played("basic") as game:
        for step in range(75):
            last = game.step((1 + step % 2, 0))
            assert (last["truncated"][0], last["terminated"][0]) == (step == 74, False)
        assert last["length"][0] * FRAME_SKIP == 300
        assert last["objective"][0] == last["raw_return"][0] == -300
        assert (last["obs"] != game.steps[-2]["obs"]).any()
        assert last["episode_done"][0]
        reset = game.step((0, 1))
        assert (reset["first"][0], reset["reward"][0], reset["length"][0]) == (True, 0, 0)
        assert not reset["episode_done"][0]


def test_a_death_terminates():
    with Played("deadly_corridor", reward=0.5) as game:
        while not game.step(STILL["deadly_corridor"])["episode_done"][0]:
            assert len(game.steps) < 400
        last = game.steps[-1]
        assert (last["terminated"][0], last["truncated"][0]) == (True, False)
        assert last["measurements"][0, 0] == 0
        assert last["objective"][0] <= -100
        np.testing.assert_allclose(last["shaped_return"], 0.5 * last["raw_return"], rtol=1e-5)


def test_against_bots_a_death_ends_no_episode_and_the_new_life_is_no_event():
    with Played("deathmatch_bots", seed=1, health=1.0, death=-1000.0) as game:
        deaths = game.variable("DEATHCOUNT")
        while (seen := game.random(20))["reward"].min() > -900:
            assert len(seen["reward"]) < 600
        assert not seen["episode_done"].any()
        assert (seen["measurements"][:, 0, 0] > 0).all()
        died = game.variable("DEATHCOUNT") - deaths
        assert seen["reward"][seen["reward"] < -500].sum() == pytest.approx(-1000 * died, abs=1)


@pytest.mark.parametrize(
    ("event", "variable", "sign"),
    [("hit", "HITCOUNT", 1), ("damage_taken", "DAMAGE_TAKEN", 1), ("ammo_spent", "AMMO2", -1)],
)
def test_a_coefficient_pays_per_event(event, variable, sign):
    with Played("defend_the_center", seed=3, **{event: -0.5}) as game:
        first = game.variable(variable)
        rng = np.random.default_rng(0)
        paid = 0.0
        for _ in range(60):
            step = game.step(rng.integers(0, game.vector_env.spec.action.nvec))
            assert not step["episode_done"][0]
            paid += step["reward"][0]
        counted = sign * (game.variable(variable) - first)
        assert counted > 0
        assert paid == pytest.approx(-0.5 * counted)


def test_shaping_never_touches_the_objective():
    with Played("defend_the_center", reward=1.0) as game:
        plain = game.random(200)
    with Played("defend_the_center", reward=3.0, damage_taken=-0.1) as game:
        shaped = game.random(200)
    ends = np.argwhere(plain["episode_done"][:, 0])[:, 0]
    assert len(ends) >= 1
    np.testing.assert_array_equal(plain["objective"], shaped["objective"])
    np.testing.assert_array_equal(plain["raw_return"], shaped["raw_return"])
    np.testing.assert_allclose(plain["shaped_return"], plain["raw_return"], atol=1e-4)
    assert (plain["shaped_return"][ends] != shaped["shaped_return"][ends]).all()


def test_the_picture_reads_every_row_and_column_and_keeps_flat_areas():
    out = np.zeros(PICTURE, np.uint8)
    height, width = SCREEN
    shrink(np.full((3, height, width), 201, np.uint8), out)
    assert (out == 201).all()
    for axis, size in ((1, height), (2, width)):
        for line in range(size):
            screen = np.zeros((3, height, width), np.uint8)
            screen[(slice(None),) * axis + (line,)] = 100
            shrink(screen, out)
            assert set(np.unique(out)) == {0, 50}, (axis, line)


def test_a_game_that_dies_raises_and_the_others_are_closed():
    with Played("basic", rows=2) as game:
        games = psutil.Process().children()
        assert len(games) == 2
        games[0].kill()
        with pytest.raises((vizdoom.ViZDoomErrorException, vizdoom.ViZDoomUnexpectedExitException)):
            game.random(10)


def test_a_folder_where_no_program_may_run_is_named(monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(EnvSetupError, match=r"noexec.*TMPDIR"):
        DoomVectorEnv("basic", 1, 0, lambda _row: (0, {}))


CHILD = """
import os
import numpy as np
from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.doom.vector_env import DoomVectorEnv, probe
os.set_inheritable(os.open("held", os.O_CREAT), True)
spec = probe("basic")
env = DoomVectorEnv("basic", 3, 0, lambda _row: (0, spec.shaping))
out = private_step_arrays(spec, 3)
env.reset(out)
print("ready", flush=True)
while True:
    env.step(np.zeros((3, 2), np.int32), out)
"""


def test_nothing_is_left_of_a_killed_process_and_ctrl_c_does_not_reach_its_games(tmp_path):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "HOME": str(tmp_path)}
    options = {"stdout": subprocess.PIPE, "cwd": tmp_path, "env": environment, "start_new_session": True}
    child = subprocess.Popen([sys.executable, "-c", CHILD], **options)
    try:
        assert child.stdout.readline() == b"ready\n"
        games = psutil.Process(child.pid).children()
        assert len(games) == 3
        assert all(os.getpgid(game.pid) != os.getpgid(child.pid) for game in games)
        held = [p.readlink() for game in games for p in Path(f"/proc/{game.pid}/fd").iterdir()]
        assert tmp_path / "held" not in held
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    _, alive = psutil.wait_procs(games, timeout=30)
    assert not alive  # every test checks /dev/shm
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "tmp"]
    assert not list(scratch.iterdir())
