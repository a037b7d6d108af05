"""Doom duels: both players of a game are agents.

Each player has the observations and actions of single-player games (see `vector_env.py`). The reward is the sum of
coefficients * events. A player's objective is the player's number of frags: kills of the opponent minus suicides. A
dead player respawns after two tics (a tic is the engine's time step, 1/35 s). The game continues until the time limit,
so every episode is truncated.

A game has two engine processes, a host and a guest, which are synchronised at every tic. Each engine sends its player's
buttons to the other engine (UDP, 127.0.0.1) and waits for the buttons of the other player. If both engines step at the
same time (`make_action(action, 4)` in two threads), they hang within a few steps, as observed with vizdoom 1.3.2. With
the following order the engines do not hang, and equal seeds give equal games:

    host plays tic k      The guest's buttons for k have already arrived.
    guest plays tic k     The host's buttons for k have arrived. The guest then sends its buttons for k + 1.

The guest sends its buttons one tic ahead only after this event: the host's buttons for a tic arrive before the guest
plays this tic. `begin_episode` produces this state: it plays idle tics, in which the host starts before the guest,
until the host finishes a tic without waiting for the guest. From then on, the guest's buttons take effect one tic late.
`step` delays the host's buttons by one tic too, so both players have equal delays.

    begin   Each engine runs in a thread, because both engines wait for each other.
    step    Both engines run in the calling thread.

If a player is killed while the episode begins, another episode is begun. This happens when the players spawn at the
same position.

The engines of a game take a second to connect, mostly idle. The constructor of `Pair` starts the engines but does not
wait for their connection. `Pair.found` waits. If this process is killed while the engines connect, files remain (see
`game.py`). If an engine ends while the engines connect, the package crashes this process. Therefore `close` waits until
the engines have connected (except if the start of an engine fails), and ports are checked before use.

Axes: S agents (host and guest), V game variables, E events, A action components.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import vizdoom
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError

from ..agents.multi_agent import MultiAgentVectorEnv, Scene
from ..base import EnvSpec, ShapingSource, cpu_ns_of
from .game import PICTURE, Buttons, Senses, configured, pids, shrink, start, write_launcher
from .scenarios import Scenario

_RULES = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +viz_respawn_delay 0 "
    "+viz_afk_timeout 0"
)
_BOTH = "+viz_sync_timeout 0 +cl_noprediction 1"
"""Command line of both engines. The engines wait for each other without a timeout, and show no predicted state."""
_PORTS = range(15_000, 32_000)
"""Ports for duels, below the ports that Linux assigns automatically."""
_LOOK_SECONDS = 0.005
_MOST_BEGINNINGS = 50
_IDLE_TICS = 6
_LEAD_SECONDS, _PROOF_SECONDS = 0.01, 0.1
"""Maximum seconds by which the host starts an idle tic before the guest. _LEAD_SECONDS applies before tic _IDLE_TICS,
and _PROOF_SECONDS from this tic on. A host that finishes a tic within _PROOF_SECONDS did not wait for the guest.
"""
Do = Callable[[Any], None]


class _Engine:
    """Engine of one player, with a thread. Between `ask` and `answer`, only this thread may call `game`.

    game: `vizdoom.DoomGame`.
    give_up: called in the thread when a request raises.
    """

    def __init__(self, game: Any, give_up: Callable[[], None]) -> None:
        self.game = game
        self._give_up = give_up
        self._asked: SimpleQueue[Do | None] = SimpleQueue()
        self._done = threading.Event()
        self._done.set()
        self._error: Exception | None = None
        threading.Thread(target=self._play, daemon=True).start()

    def ask(self, do: Do) -> None:
        """Start the request do(game) in the thread, without waiting for its end."""
        self._done.clear()
        self._asked.put(do)

    def done(self, wait_seconds: float = 0.0) -> bool:
        """Wait at most this time for the end of the request. Return True if the request has finished."""
        return self._done.wait(wait_seconds)

    def answer(self) -> Exception | None:
        """Wait until the request has finished. Return the exception of the request. None: the request succeeded."""
        self._done.wait()
        return self._error

    def close(self) -> None:
        """End the thread and the game. Kill the engine process before this call."""
        self._asked.put(None)
        self.game.close()

    def _play(self) -> None:
        while (do := self._asked.get()) is not None:
            try:
                do(self.game)
            except Exception as error:  # noqa: BLE001 - `_answers` raises it again
                self._error = error
                self._give_up()
            self._done.set()


class Pair:
    """Host and guest of one game. Equal seeds give equal games.

    The constructor starts the engines, and does not wait for their connection.

    config: NAME of the file NAME.cfg of the package vizdoom.
    buttons: names of the engine's buttons.
    Raises EnvSetupError if no port is free, or if the launcher cannot be executed.
    """

    def __init__(self, config: str, buttons: Sequence[str], seed: int) -> None:
        self._engines: list[_Engine] = []
        self._pids: list[int] = []
        self._handles: list[int] = []
        self._idle = self._held = [0.0] * len(buttons)
        self._scratch = Path(tempfile.mkdtemp(prefix="pbt_rl_doom_"))
        try:
            launcher = write_launcher(self._scratch, quiet=True)
            self._port_lock, port = _lock_port()
            sides = (f"-host 2 -port {port} {_RULES}", f"-join 127.0.0.1 -port {port}")
            games = [configured(config, buttons, launcher, seed, f"{side} {_BOTH}") for side in sides]
        except BaseException:
            shutil.rmtree(self._scratch)
            raise
        for game in games:
            self._start(game)

    @property
    def games(self) -> list[Any]:
        """Games of the host and the guest, which may be read between steps."""
        return [engine.game for engine in self._engines]

    def found(self) -> None:
        """Wait until host and guest have connected. Raises the error of a failed start."""
        if self._scratch.exists():
            try:
                self._answers()
            finally:
                self._port_lock.close()
                shutil.rmtree(self._scratch)

    def begin_episode(self) -> None:
        """Begin an episode. If a player is killed at the start of the episode, begin another episode.

        Raises RuntimeError after _MOST_BEGINNINGS such episodes.
        """
        self.found()
        for _ in range(_MOST_BEGINNINGS):
            deaths = self._deaths()
            for engine in self._engines:
                engine.ask(_new_episode)
            self._answers()
            self._settle()
            if self._deaths() == deaths:
                return
        raise RuntimeError(f"{_MOST_BEGINNINGS} duels in a row began with a death")

    def step(self, pressed: list[list[float]], tics: int) -> None:
        """Play a number of tics.

        pressed: [2][number of buttons], buttons of host and guest (see `Buttons.pressed`). They take effect from the
        second tic on. In the first tic, the buttons of the previous step are still in effect.
        """
        host, guest = self.games
        for tic in range(tics):
            host.set_action(pressed[0] if tic else self._held)
            host.advance_action(1, tic == tics - 1)
            guest.set_action(pressed[1])
            guest.advance_action(1, tic == tics - 1)
        self._held = pressed[0]

    def cpu_ns(self) -> int:
        """Return the total CPU time of both engines in nanoseconds."""
        return cpu_ns_of(self._pids)

    def close(self) -> None:
        """End both engines. Safe to call twice. Raises the error of a failed start."""
        try:
            self.found()
        finally:
            self._kill()
            while self._engines:
                self._engines.pop().close()
            while self._handles:
                os.close(self._handles.pop())

    def _start(self, game: Any) -> None:
        """Start an engine and wait until its process exists.

        Engines start one by one, because the package forks this process.
        """
        engine = _Engine(game, self._kill)
        self._engines.append(engine)
        engine.ask(start)
        while len(found := pids(self._scratch)) < len(self._engines) and not engine.done():
            time.sleep(_LOOK_SECONDS)
        for pid in set(found) - set(self._pids):
            self._pids.append(pid)
            self._handles.append(os.pidfd_open(pid))

    def _deaths(self) -> list[float]:
        return [game.get_game_variable(vizdoom.GameVariable.DEATHCOUNT) for game in self.games]

    def _settle(self) -> None:
        """Play idle tics until the host finishes a tic without waiting for the guest."""
        self._held = self._idle
        host, guest = self._engines
        tics, alone = 0, False
        while tics < _IDLE_TICS or not alone:
            tics += 1
            host.ask(self._idle_tic)
            alone = host.done(_LEAD_SECONDS if tics < _IDLE_TICS else _PROOF_SECONDS)
            guest.ask(self._idle_tic)
            self._answers()

    def _idle_tic(self, game: Any) -> None:
        game.set_action(self._idle)
        game.advance_action(1, True)

    def _answers(self) -> None:
        errors = [engine.answer() for engine in self._engines]
        for error in filter(None, errors):
            raise error

    def _kill(self) -> None:
        """Kill both processes. Threads that wait for the processes get an exception."""
        for handle in self._handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)


def _new_episode(game: Any) -> None:
    game.new_episode()


def _lock_port() -> tuple[socket.socket, int]:
    """Return (TCP socket, number of a free UDP port). Raises EnvSetupError if no port is free.

    The socket is bound to the TCP port of this number. Until the socket is closed, other duels skip this number.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        port_lock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            port_lock.bind(("127.0.0.1", port))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind(("", port))
        except OSError:
            port_lock.close()
        else:
            return port_lock, port
    raise EnvSetupError(
        f"a Doom duel needs a UDP port, but all ports from {_PORTS[0]} to {_PORTS[-1]} are in use. End the processes "
        "that use them"
    )


COUNTED = {"deaths": "DEATHCOUNT", "hits": "HITCOUNT", "damage": "DAMAGECOUNT"}
"""Name of an extra statistic -> game variable."""
AT_ONCE = 4
"""Maximum number of games whose engines connect at the same time."""


class DuelTable:
    """Table (see `Table` in multi_agent.py) of one duel, with S = 2 agents.

    seed: determines all episodes. `reset` ignores its seed, because an engine is seeded only when it starts.
    """

    def __init__(self, spec: EnvSpec, scenario: Scenario, seed: int) -> None:
        self._spec, self._limit = spec, scenario.limit
        self._buttons, self._senses = Buttons(scenario), Senses(scenario, also=tuple(COUNTED.values()))
        self._coefficients_SE = np.zeros((spec.agents, len(self._senses.events)))
        self._values_SV = self._start_SV = np.zeros((spec.agents, len(self._senses.names)))
        self._tics = 0
        self.pair = Pair(scenario.config, self._buttons.names, seed)

    def describe(self) -> EnvSpec:
        return self._spec

    def shape(self, agent: int, values: Mapping[str, Any]) -> None:
        self._coefficients_SE[agent] = [values[name] for name in self._senses.events]

    def reset(self, seed: int | None) -> Scene:
        del seed
        self.pair.begin_episode()
        self._tics = 0
        self._values_SV = self._start_SV = self._read()
        return self._scene(np.zeros(self._spec.agents), over=False)

    def advance(self, action: NDArray[Any]) -> Scene:
        self.pair.step([self._buttons.pressed(action_A) for action_A in action], self._spec.frame_skip)
        self._tics += self._spec.frame_skip
        before_SV, self._values_SV = self._values_SV, self._read()
        event_SE = self._senses.happened(before_SV, self._values_SV)
        return self._scene((self._coefficients_SE * event_SE).sum(1), over=self._tics >= self._limit)

    def close(self) -> None:
        self.pair.close()

    def _read(self) -> NDArray[np.float64]:
        return np.array([self._senses.read(game) for game in self.pair.games])

    def _scene(self, reward: NDArray[np.float64], *, over: bool) -> Scene:
        agents, every_S = range(self._spec.agents), np.ones(self._spec.agents, np.bool_)
        measured = self._senses.measurements(self._values_SV).astype(np.float32)
        obs = {}
        for agent, game in enumerate(self.pair.games):
            picture = np.empty(PICTURE, np.uint8)
            shrink(game.get_state().screen_buffer, picture)
            obs[agent] = {"obs": picture, "measurements": measured[agent]}
        gained_SV = self._values_SV - self._start_SV
        frags_S = self._senses.of("FRAGCOUNT", gained_SV)
        counted = {name: self._senses.of(variable, gained_SV) for name, variable in COUNTED.items()}
        return Scene(
            obs,
            active=every_S & (not over),
            reward=reward,
            terminated=~every_S,
            truncated=every_S & over,
            objective={agent: float(frags_S[agent]) for agent in agents},
            stats={agent: {name: float(of_S[agent]) for name, of_S in counted.items()} for agent in agents},
        )


class DuelVectorEnv(MultiAgentVectorEnv):
    """Vector env of R players in R / 2 duels. Raises EnvSetupError if R is odd.

    The engines of at most AT_ONCE duels connect at the same time. The constructor returns after all have connected.
    """

    def __init__(
        self, spec: EnvSpec, scenario: Scenario, rows: int, seed: int, shaping: ShapingSource
    ) -> None:
        seeds = iter(np.random.SeedSequence(seed).generate_state(rows).tolist())
        self._pairs: list[Pair] = []

        def make() -> DuelTable:
            if len(self._pairs) >= AT_ONCE:
                self._pairs[-AT_ONCE].found()
            table = DuelTable(spec, scenario, next(seeds))
            self._pairs.append(table.pair)
            return table

        super().__init__(make, rows, seed, shaping)
        try:
            for pair in self._pairs:
                pair.found()
        except BaseException:
            self.close()
            raise

    def cpu_ns(self) -> int:
        """Return the total CPU time of this process and the games in nanoseconds."""
        return time.process_time_ns() + sum(pair.cpu_ns() for pair in self._pairs)
