"""Duels of Doom on the real engines: both sides' steps, seeds, shaping, and that no engine outlives the other or us."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import psutil
import pytest

from tests.helpers.runs import train

pytest.importorskip("vizdoom", reason="the extra `vizdoom` is not installed")

import vizdoom

from pbt_rl.envs.base import EnvSetupError, cpu_clock, private_step_arrays, read_stats
from pbt_rl.envs.doom import pair as doom_pair
from pbt_rl.envs.doom.duel import DuelUnit
from pbt_rl.envs.doom.scenarios import SCENARIOS
from pbt_rl.envs.doom.unit import probe

VARIABLE = vizdoom.GameVariable


class Played:
    """A unit of duels, with every step that it delivered. shaping: row -> coefficients; the others are 0."""

    def __init__(self, name, rows=2, seed=0, limit=2100, shaping=None):
        spec, scenario = probe(name), replace(SCENARIOS[name], limit=limit)
        nothing = dict.fromkeys(spec.shaping, 0.0)
        self.unit = DuelUnit(
            spec, scenario, rows, seed, lambda row: (5, nothing | (shaping or {}).get(row, {}))
        )
        self.out = private_step_arrays(spec, rows)
        self.unit.reset(self.out)
        self.steps = [self.snapshot()]
        self.rng = np.random.default_rng(seed)

    def snapshot(self):
        fields = {n: v.copy() for n, v in vars(self.out).items() if isinstance(v, np.ndarray)}
        return fields | {n: array.copy() for n, array in self.out.obs.items()}

    def step(self, action):
        self.unit.step(np.array(action, np.int32), self.out)
        self.steps.append(self.snapshot())
        return self.steps[-1]

    def random(self, steps):
        nvec = self.unit.spec.action.nvec
        for _ in range(steps):
            self.step(self.rng.integers(0, nvec, (4, len(nvec)))[: self.unit.rows])
        return {name: np.stack([step[name] for step in self.steps]) for name in self.steps[0]}

    def variable(self, row, name):
        """As reported by the row's own engine (the first game's)."""
        return self.unit._pairs[0].games[row].get_game_variable(getattr(VARIABLE, name))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.unit.close()
        self.unit.close()


def test_equal_seeds_give_equal_games_which_end_truncated_for_both_and_begin_anew():
    histories = []
    for rows in (2, 4):
        with Played("duel_arena", rows=rows, seed=1, limit=80) as played:
            histories.append(played.random(30))
    again, one = histories
    for field, array in again.items():
        np.testing.assert_array_equal(array, one[field][:, :2])
    obs = one["obs"]
    assert (obs[:, 0] != obs[:, 1]).any((1, 2, 3)).all(), "each side sees with its own eyes"
    assert (obs[:, 0] != obs[:, 2]).any(), "games of a unit differ"
    assert (obs[0] != obs[21]).any(), "so do a game's episodes"
    assert (obs[19] != obs[20]).any((1, 2, 3)).all(), "the last picture is a new one"
    steps = np.arange(31)
    for row in range(4):
        assert (one["first"][:, row] == np.isin(steps, (0, 21))).all()
        assert (one["truncated"][:, row] == (steps == 20)).all()
        assert (one["episode_done"][:, row] == (steps == 20)).all()
    assert not one["terminated"].any()
    assert (one["length"][20] == 20).all()
    assert (one["seat"][20] == [0, 1, 2, 3]).all()
    assert (one["shaping_version"][20] == 5).all()


def test_each_side_is_paid_for_its_own_events_and_ranked_by_its_frags():
    """Random rockets kill the players that fire them."""
    with Played(
        "duel", limit=600, shaping={0: {"suicide": -1.0}, 1: {"death": -2.0, "ammo_spent": 0.1}}
    ) as played:
        clock = cpu_clock(played.unit)
        began = clock()
        assert played.random(151)["first"][-1].all()
        played.steps.clear()
        died = [played.variable(row, "DEATHCOUNT") for row in (0, 1)]
        assert min(died) > 0
        seen = played.random(150)
        assert clock() > began
        died = [played.variable(row, "DEATHCOUNT") - died[row] for row in (0, 1)]
        frags = [played.variable(row, "FRAGCOUNT") for row in (0, 1)]
    assert min(died) > 0
    end = {name: array[-1] for name, array in seen.items()}
    assert end["episode_done"].all()
    assert not seen["episode_done"][:-1].any(), "a death ends nothing"
    np.testing.assert_array_equal(end["objective"], frags)
    np.testing.assert_array_equal(read_stats(played.out, 1)["deaths"], died[1])
    assert seen["reward"][:, 0].sum() <= frags[0] < 0
    spent = seen["reward"][:, 1]
    assert (spent < -1.0).sum() == died[1]
    assert (spent > 0.05).sum() > 10, "new ammunition of a new life is no event, what was fired is"
    assert spent.max() < 0.25
    dead = seen["measurements"][:, :, 0] == 0
    assert dead.any()
    assert not (dead[1:-1] & dead[2:]).any(), "back within a step"


@pytest.mark.parametrize("side", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_engine_that_dies_raises_and_takes_the_other_with_it(side):
    with Played("duel") as played:
        played.random(3)
        pids = played.unit._pairs[0]._pids
        psutil.Process(pids[side]).kill()
        with pytest.raises((vizdoom.ViZDoomErrorException, vizdoom.ViZDoomUnexpectedExitException)):
            played.random(10)
        played.unit.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_port_that_is_taken_is_left_alone_and_none_at_all_is_an_error(monkeypatch):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(doom_pair, "_PORTS", range(port, port + 1))
        with pytest.raises(EnvSetupError, match=f"UDP port from {port} to {port}.*all are taken"):
            Played("duel")
    claim, claimed = doom_pair._claim_port()
    assert claimed == port
    with pytest.raises(EnvSetupError, match="all are taken"):
        doom_pair._claim_port()
    claim.close()


@pytest.mark.slow
def test_buttons_of_both_sides_take_effect_in_the_second_tic():
    pair = doom_pair.Pair("multi_duel", ["TURN_LEFT"], 0)
    try:
        pair.begin_episode()
        for _ in range(50):
            angles = []
            for pressed in (0.0, 1.0, 0.0, 0.0):
                pair.step([[pressed], [pressed]], 1)
                angles.append([game.get_game_variable(VARIABLE.ANGLE) for game in pair.games])
            before, during, after, later = np.array(angles)
            assert (before == during).all()
            assert (during != after).all()
            assert (after == later).all()
    finally:
        pair.close()


@pytest.mark.slow
def test_a_player_killed_by_the_others_arrival_starts_again(monkeypatch):
    deaths, real = [], doom_pair._new_episode

    def watched(game):
        if game is pair.games[0]:
            deaths.append(pair._deaths())
        real(game)

    monkeypatch.setattr(doom_pair, "_new_episode", watched)
    pair = doom_pair.Pair("multi_duel", ["ATTACK"], 0)
    try:
        for _ in range(10):
            pair.begin_episode()
            assert deaths[-1] == pair._deaths()
        assert len(deaths) > 10
    finally:
        pair.close()


CHILD = """
import numpy as np
from pbt_rl.envs import registry
from pbt_rl.envs.base import private_step_arrays
spec = registry.probe("vizdoom/duel", registry.DEFAULTS)
unit = registry.make_unit("vizdoom/duel", 4, 0, registry.DEFAULTS, lambda _row: (0, spec.shaping))
out = private_step_arrays(spec, 4)
unit.reset(out)
print("ready", flush=True)
while True:
    unit.step(np.zeros((4, 4), np.int32), out)
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_killed_process(tmp_path):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "HOME": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment,
    )
    try:
        assert child.stdout.readline() == b"ready\n"
        engines = psutil.Process(child.pid).children()
        assert len(engines) == 4
    finally:
        child.kill()
        said = child.communicate()[1]
    _, alive = psutil.wait_procs(engines, timeout=2)
    assert not alive  # /dev/shm is looked at after every test
    assert said == b"", "engines keep their mouths shut"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmp"]
    assert not list(scratch.iterdir())


@pytest.mark.slow
def test_a_run_outlives_an_engine_and_no_engine_outlives_the_run(tmp_path):
    run = train(
        tmp_path,
        "vizdoom/duel",
        "--num-policies=2",
        "--actors=1",
        "--units-per-actor=1",
        "--envs-per-unit=2",
        "--learner.batch=64",
        "--learner.minibatches=1",
    )
    seen = run.wait_for("frames/s")
    (actor,) = run.children("actor")
    first, *others = actor.children()
    assert len(others) == 3
    first.kill()
    seen = run.wait_for("actor 0 is restarted", after=seen)
    _, alive = psutil.wait_procs(others, timeout=2)
    assert not alive
    run.wait_for("frames/s", after=seen)
    (actor,) = run.children("actor")
    engines = actor.children()
    assert len(engines) == 4
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    _, alive = psutil.wait_procs([actor, *engines], timeout=3)
    assert not alive
