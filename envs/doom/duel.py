"""Doom duels: both players of a game are agents.

Observations, actions and rewards are those of single-player games (see `vector_env`), from each player's own view. A
player's objective is its frags: kills of the opponent, less one per suicide. A dead player respawns after two tics.
The game continues until its time limit, so it always ends truncated.

A game is two engine processes, a host and a guest, synchronised at every tic.
Each engine sends its player's buttons to the other one (UDP, 127.0.0.1) and waits for the other's. Without
coordination (`make_action(action, 4)` on both sides, each from a thread) they hang within a few steps, as seen with
vizdoom 1.3.2. This order is safe, and equal seeds give equal games:

    host plays tic k      it needs the guest's command for k, which has already arrived
    guest plays tic k     it finds the host's command for k, and so sends its own for k + 1 ahead

A guest starts to send one command ahead once it has found the host's waiting, and continues as long as it does (ZDoom
keeps guests that far ahead). So `begin_episode` lets both play a few idle tics, the host first, until the host can
play alone. The guest's buttons take effect one tic later; the host's are delayed by as much.

    begin   a thread for each engine: both wait for each other
    step    no threads

A player may spawn on the other one and kill it. Such an episode is restarted.

Engines take a second to connect, mostly idle. A `Pair` starts them without waiting; `found` waits. In that second,
killing this process leaves files behind (see `game`). The death of an engine then ends this process too, because the
package crashes if an engine ends while it starts. So no engine is ended in that second, and ports are checked before
use.

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
"""Flags of both sides: engines wait for each other without a timeout, and show no predicted state."""
_PORTS = range(15_000, 32_000)
"""Port range below the ports that Linux assigns automatically."""
_LOOK_SECONDS = 0.005
_MOST_BEGINNINGS = 50
_IDLE_TICS = 6
_LEAD_SECONDS, _PROOF_SECONDS = 0.01, 0.1
"""Head start of the host in idle tics, and the time within which it must play the last of them alone."""
Do = Callable[[Any], None]


class _Engine:
    """One engine and its thread: no other thread may call `game` between `ask` and `answer`."""

    def __init__(self, game: Any, give_up: Callable[[], None]) -> None:
        self.game = game
        self._give_up = give_up
        self._asked: SimpleQueue[Do | None] = SimpleQueue()
        self._done = threading.Event()
        self._done.set()
        self._error: Exception | None = None
        threading.Thread(target=self._play, daemon=True).start()

    def ask(self, do: Do) -> None:
        """Run do(game) in the thread."""
        self._done.clear()
        self._asked.put(do)

    def done(self, wait_seconds: float = 0.0) -> bool:
        """Check whether the thread has finished its request."""
        return self._done.wait(wait_seconds)

    def answer(self) -> Exception | None:
        """Wait for the request to finish and return its exception."""
        self._done.wait()
        return self._error

    def close(self) -> None:
        """End the thread and the game, whose process must already have been killed."""
        self._asked.put(None)
        self.game.close()

    def _play(self) -> None:
        while (do := self._asked.get()) is not None:
            try:
                do(self.game)
            except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
                self._error = error
                self._give_up()
            self._done.set()


class Pair:
    """Host and guest of one game. config: the package's file NAME.cfg. Equal seeds give equal games."""

    def __init__(self, config: str, buttons: Sequence[str], seed: int) -> None:
        self._engines: list[_Engine] = []
        self._pids: list[int] = []
        self._handles: list[int] = []
        self._idle = self._held = [0.0] * len(buttons)
        self._scratch = Path(tempfile.mkdtemp(prefix="pbt_rl_doom_"))
        try:
            launcher = write_launcher(self._scratch, quiet=True)
            self._claim, port = _claim_port()
            sides = (f"-host 2 -port {port} {_RULES}", f"-join 127.0.0.1 -port {port}")
            games = [configured(config, buttons, launcher, seed, f"{side} {_BOTH}") for side in sides]
        except BaseException:
            shutil.rmtree(self._scratch)
            raise
        for game in games:
            self._start(game)

    @property
    def games(self) -> list[Any]:
        """Return the host's and the guest's game, which may be read between steps."""
        return [engine.game for engine in self._engines]

    def found(self) -> None:
        """Wait until host and guest have connected."""
        if self._scratch.exists():
            try:
                self._answers()
            finally:
                self._claim.close()
                shutil.rmtree(self._scratch)

    def begin_episode(self) -> None:
        """Begin an episode in which both players are alive and neither was killed."""
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
        """Play this many tics. pressed: buttons of host and guest; both take effect from the second tic on."""
        host, guest = self.games
        for tic in range(tics):
            host.set_action(pressed[0] if tic else self._held)
            host.advance_action(1, tic == tics - 1)
            guest.set_action(pressed[1])
            guest.advance_action(1, tic == tics - 1)
        self._held = pressed[0]

    def cpu_ns(self) -> int:
        """Return the CPU-nanoseconds of both engines so far."""
        return cpu_ns_of(self._pids)

    def close(self) -> None:
        """End both engines. Safe to call twice."""
        self.found()
        self._kill()
        while self._engines:
            self._engines.pop().close()
        while self._handles:
            os.close(self._handles.pop())

    def _start(self, game: Any) -> None:
        """Start an engine and wait only for its process. Never start two at once (see `Games`)."""
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
        """Play idle tics until the host can play one alone."""
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
        """Kill both processes; threads that wait for them get an exception."""
        for handle in self._handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)


def _new_episode(game: Any) -> None:
    game.new_episode()


def _claim_port() -> tuple[socket.socket, int]:
    """Return a free UDP port, and a socket on its TCP twin that reserves the port among pairs."""
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind(("127.0.0.1", port))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind(("", port))
        except OSError:
            claim.close()
        else:
            return claim, port
    raise EnvSetupError(
        f"a duel of Doom needs a UDP port from {_PORTS[0]} to {_PORTS[-1]} on this machine, and all "
        "are in use. End the processes that use them"
    )


COUNTED = {"deaths": "DEATHCOUNT", "hits": "HITCOUNT", "damage": "DAMAGECOUNT"}
"""Statistic of an episode -> its game variable."""
AT_ONCE = 4
"""Number of games whose engines connect at the same time."""


class DuelTable:
    """One game. Its constructor takes the seed because the engines start there."""

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
    """R players in R / 2 games."""

    def __init__(
        self, spec: EnvSpec, scenario: Scenario, rows: int, seed: int, shaping: ShapingSource
    ) -> None:
        seeds = iter(np.random.SeedSequence(seed).generate_state(rows).tolist())
        self._pairs: list[Pair] = []

        def make() -> DuelTable:
            for pair in self._pairs[-AT_ONCE:][:1]:
                pair.found()
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
        """Return the CPU-nanoseconds of this process and the games."""
        return time.process_time_ns() + sum(pair.cpu_ns() for pair in self._pairs)
