"""Doom duels on the real engine: steps, seeds, shaping, and the end of all engine processes."""

import os
import signal
import socket
from dataclasses import replace

import numpy as np
import psutil
import pytest

from tests.helpers import played
from tests.helpers.runs import train

pytest.importorskip("vizdoom", reason="the extra `vizdoom` is not installed")

import vizdoom

from pbt_rl.envs.base import cpu_clock, read_stats
from pbt_rl.envs.doom import duel
from pbt_rl.envs.doom.duel import DuelVectorEnv
from pbt_rl.envs.doom.scenarios import SCENARIOS
from pbt_rl.envs.doom.vector_env import probe
from pbt_rl.errors import EnvSetupError

VARIABLE = vizdoom.GameVariable


class Played(played.Played):
    """Vector env of duels. shaping: row -> coefficients. Missing coefficients are 0."""

    def __init__(self, name, rows=2, seed=0, limit=2100, shaping=None):
        spec, scenario = probe(name), replace(SCENARIOS[name], limit=limit)
        values = [dict.fromkeys(spec.shaping, 0.0) | (shaping or {}).get(row, {}) for row in range(rows)]
        self.rng = np.random.default_rng(seed)
        super().__init__(DuelVectorEnv(spec, scenario, rows, seed, lambda row: (5, values[row])))

    def random(self, steps):
        nvec = self.vector_env.spec.action.nvec
        for _ in range(steps):
            self.step(self.rng.integers(0, nvec, (4, len(nvec)))[: self.vector_env.rows])
        return self.history()

    def variable(self, row, name):
        """Return a game variable of the row's engine, in the first game."""
        return self.vector_env._pairs[0].games[row].get_game_variable(getattr(VARIABLE, name))


def test_equal_seeds_give_equal_games_which_end_truncated_for_both_and_begin_anew():
    histories = []
    for rows in (2, 4):
        with Played("duel_arena", rows=rows, seed=1, limit=80) as game:
            histories.append(game.random(30))
    again, one = histories
    for field, array in again.items():
        np.testing.assert_array_equal(array, one[field][:, :2])
    obs = one["obs"]
    assert (obs[:, 0] != obs[:, 1]).any((1, 2, 3)).all(), "each side sees with its own eyes"
    assert (obs[:, 0] != obs[:, 2]).any(), "games of a vector env differ"
    assert (obs[0] != obs[21]).any(), "so do a game's episodes"
    assert (obs[19] != obs[20]).any((1, 2, 3)).all(), "the last picture is a new one"
    steps = np.arange(31)
    for row in range(4):
        assert (one["first"][:, row] == np.isin(steps, (0, 21))).all()
        assert (one["truncated"][:, row] == (steps == 20)).all()
        assert (one["episode_done"][:, row] == (steps == 20)).all()
    assert not one["terminated"].any()
    assert (one["length"][20] == 20).all()
    assert (one["agent"][20] == [0, 1, 2, 3]).all()
    assert (one["shaping_version"][20] == 5).all()


def test_each_side_is_paid_for_its_own_events_and_ranked_by_its_frags():
    """Random rockets kill the players that fire them."""
    shaping = {0: {"suicide": -1.0}, 1: {"death": -2.0, "ammo_spent": 0.1}}
    with Played("duel", limit=600, shaping=shaping) as game:
        clock = cpu_clock(game.vector_env)
        began = clock()
        assert game.random(151)["first"][-1].all()
        game.steps.clear()
        died = [game.variable(row, "DEATHCOUNT") for row in (0, 1)]
        assert min(died) > 0
        seen = game.random(150)
        assert clock() > began
        died = [game.variable(row, "DEATHCOUNT") - died[row] for row in (0, 1)]
        frags = [game.variable(row, "FRAGCOUNT") for row in (0, 1)]
    assert min(died) > 0
    end = {name: array[-1] for name, array in seen.items()}
    assert end["episode_done"].all()
    assert not seen["episode_done"][:-1].any(), "a death ends nothing"
    np.testing.assert_array_equal(end["objective"], frags)
    np.testing.assert_array_equal(read_stats(game.out, 1)["deaths"], died[1])
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
    with Played("duel") as game:
        game.random(3)
        pids = game.vector_env._pairs[0]._pids
        psutil.Process(pids[side]).kill()
        with pytest.raises((vizdoom.ViZDoomErrorException, vizdoom.ViZDoomUnexpectedExitException)):
            game.random(10)
        game.vector_env.close()
        assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_port_that_is_taken_is_left_alone_and_none_at_all_is_an_error(monkeypatch):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(duel, "_PORTS", range(port, port + 1))
        with pytest.raises(EnvSetupError, match=f"UDP port.* from {port} to {port}"):
            Played("duel")
    port_lock, locked = duel._lock_port()
    assert locked == port
    with pytest.raises(EnvSetupError, match="UDP port"):
        duel._lock_port()
    port_lock.close()


@pytest.mark.slow
def test_a_player_killed_by_the_others_arrival_starts_again(monkeypatch):
    deaths, real = [], duel._new_episode

    def watched(game):
        if game is pair.games[0]:
            deaths.append(pair._deaths())
        real(game)

    monkeypatch.setattr(duel, "_new_episode", watched)
    pair = duel.Pair("multi_duel", ["ATTACK"], 0)
    try:
        for _ in range(10):
            pair.begin_episode()
            assert deaths[-1] == pair._deaths()
        assert len(deaths) > 10
    finally:
        pair.close()


@pytest.mark.slow
def test_a_run_outlives_an_engine_and_no_engine_outlives_the_run(tmp_path):
    words = "--num-policies=2 --actors=1 --vector-envs-per-actor=1 --envs-per-vector-env=2 --learner.batch=64"
    run = train(tmp_path, "vizdoom/duel", *words.split(), "--learner.minibatches=1")
    seen = run.wait_for("frames/s")
    (actor,) = run.children("actor")
    first, *others = actor.children()
    assert len(others) == 3
    first.kill()
    seen = run.wait_for("restarting actor 0", after=seen)
    _, alive = psutil.wait_procs(others, timeout=30)
    assert not alive
    run.wait_for("frames/s", after=seen)
    (actor,) = run.children("actor")
    engines = actor.children()
    assert len(engines) == 4
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    _, alive = psutil.wait_procs([actor, *engines], timeout=30)
    assert not alive
