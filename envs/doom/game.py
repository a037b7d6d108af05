"""Engine processes, buttons, measurements and events of Doom games.

The package vizdoom forks this process to start an engine: a process that runs one game for one player. This process
and the engine communicate through files in /dev/shm. The engine writes `_vizdoom.ini` and `_vizdoom/` into its working
directory. If this process were killed, the engine would wait for this process forever, and the files would remain.
Therefore:

- A launcher binds the engine to this process (see `pbt_rl.processes.keeper`).
- The launcher also sets a separate scratch folder as working directory of each engine. Two engines that create
  `_vizdoom/` in one folder at the same time would crash, and crash this process.
- The files in /dev/shm are removed as soon as this process and the engine have opened them. The scratch folder is
  removed after all games of a vector env (or both engines of a duel) have started.

If this process is killed while a game starts (0.1 s), three small files in /dev/shm and a folder in /tmp remain.

Axes: R players, V game variables, E events, A action components.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import vizdoom
from numpy.typing import NDArray

from pbt_rl.errors import EnvSetupError
from pbt_rl.processes.child import bound_to_us

from ..base import cpu_ns_of
from .scenarios import EVENTS, MEASURED, MEASURED_ARMS, OWN_REWARD, SLOTS, Scenario

SCREEN = (120, 160)
"""Height and width of the engine's screen: the smallest resolution, which renders twice as fast as 256x144."""
PICTURE = (3, 72, 128)
"""Shape of the observation "obs": channels, height, width."""

_WITH_BOTS = (
    "-host 1 -deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 "
    "+viz_respawn_delay 0"
)
"""Command line of games with bots. With `-host 1` the engine opens no port."""


class Games:
    """R running games of one scenario.

    config: NAME of the file NAME.cfg of the package vizdoom.
    bots: number of bots. A game with bots is a multiplayer game.
    buttons: names of the engine's buttons.
    seeds: one per game.
    running: the games, `vizdoom.DoomGame`.
    """

    def __init__(self, config: str, bots: int, buttons: Sequence[str], seeds: Iterable[int]) -> None:
        self.running: list[Any] = []
        self._bots = bots
        scratch = Path(tempfile.mkdtemp(prefix="pbt_rl_doom_"))
        try:
            launcher = write_launcher(scratch)
            # Sequential, because the package forks, and OpenBLAS does not support concurrent forks of a process.
            for seed in seeds:
                game = configured(config, buttons, launcher, seed, _WITH_BOTS if bots else "")
                start(game)
                self.running.append(game)
            self._pids = pids(scratch)
        finally:
            shutil.rmtree(scratch)

    def begin_episode(self, row: int) -> Any:
        """Begin an episode of the game with the index `row`. Return the game, a `vizdoom.DoomGame`."""
        game = self.running[row]
        game.new_episode()
        if self._bots:
            game.send_game_command("removebots")
            for _ in range(self._bots):
                game.send_game_command("addbot")
        return game

    def cpu_ns(self) -> int:
        """Return the total CPU time of the games in nanoseconds. A dead process counts as 0."""
        return cpu_ns_of(self._pids)

    def close(self) -> None:
        """End every game once."""
        while self.running:
            self.running.pop().close()


def write_launcher(scratch: Path, *, quiet: bool = False) -> Path:
    """Write the shell script that starts an engine, and return its path.

    scratch: folder of the script. The working directory of each engine is a new folder in `scratch`, named after the
    engine's process id.
    quiet: True detaches the engine from the terminal.
    Raises EnvSetupError if programs in the scratch folder cannot be executed.
    """
    engine = Path(vizdoom.__file__).with_name("vizdoom")
    launcher = scratch / "launcher"
    own = f"{shlex.quote(str(scratch))}/$$"
    silence = " </dev/null >/dev/null 2>&1" if quiet else ""
    launcher.write_text(
        f'#!/bin/sh\nmkdir {own} && cd {own} && exec {shlex.join(bound_to_us([str(engine)]))} "$@"{silence}\n'
    )
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):  # the package would crash
        raise EnvSetupError(
            f"Doom cannot be started: programs in {scratch.parent} cannot be executed (mounted noexec). Set TMPDIR to "
            "another folder"
        )
    return launcher


def pids(scratch: Path) -> list[int]:
    """Return the ids of the engine processes that were started in a scratch folder."""
    return [int(folder.name) for folder in scratch.glob("[0-9]*")]


def configured(config: str, buttons: Sequence[str], launcher: Path, seed: int, arguments: str) -> Any:
    """Make a `vizdoom.DoomGame` without starting its engine.

    config: NAME of the file NAME.cfg of the package vizdoom.
    buttons: names of the engine's buttons.
    launcher: script that `write_launcher` wrote.
    arguments: the engine's command line for a multiplayer game, else "".
    """
    game = vizdoom.DoomGame()
    game.load_config(str(Path(vizdoom.scenarios_path) / f"{config}.cfg"))
    if arguments:
        game.add_game_args(arguments)
        game.set_render_hud(False)
    game.set_vizdoom_path(str(launcher))
    game.set_doom_config_path("/dev/null")
    game.set_available_buttons([getattr(vizdoom.Button, name) for name in buttons])
    game.set_available_game_variables([])
    height, width = SCREEN
    game.set_screen_resolution(getattr(vizdoom.ScreenResolution, f"RES_{width}X{height}"))
    game.set_screen_format(vizdoom.ScreenFormat.CRCGCB)
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    # Disabled, because the vector env enforces the time limit.
    game.set_episode_timeout(0)
    game.set_seed(int(seed))
    return game


def start(game: Any) -> None:
    """Start the engine, and unlink its files in /dev/shm. Both processes have opened the files, so they stay usable."""
    game.init()
    name = game.get_instance_id()
    for kind in ("SM", "MQCtr", "MQDoom"):
        Path(f"/dev/shm/ViZDoom{kind}{name}").unlink(missing_ok=True)  # noqa: S108 - the package's paths


def _sources() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return two arrays of indices into a flat screen: two diagonal neighbours for each pixel of the picture.

    Each array has one index for each of the 72 * 128 pixels. Together the indices cover every line and column of the
    screen, which preserves small objects.
    """
    (height, width), (_, rows, columns) = SCREEN, PICTURE
    row, column = np.arange(rows) * height // rows, np.arange(columns) * width // columns
    flat = row[:, None] * width + column
    return flat.ravel(), (flat + width + 1).ravel()


_UPPER, _LOWER = _sources()


def shrink(screen: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Scale a screen [3, 120, 160] to a picture [3, 72, 128]. Each pixel is the mean of two pixels."""
    flat = screen.reshape(3, -1)
    upper, lower = flat.take(_UPPER, axis=1), flat.take(_LOWER, axis=1)
    out[:] = ((upper & lower) + ((upper ^ lower) >> 1)).reshape(PICTURE)


MOST_MEASURED = 4.0
"""Measurements are clipped to 0..MOST_MEASURED."""
POSSESSIONS = ("HEALTH", "ARMOR", "AMMO", "WEAPON")
"""Prefixes of game variables that a respawn resets. Changes of these variables are ignored in steps with a death or a
respawn.
"""


class Buttons:
    """Buttons of a scenario, and the conversion of actions to pressed buttons. names: the buttons, sorted."""

    def __init__(self, scenario: Scenario) -> None:
        self.names = sorted({b for choices in scenario.actions for choice in choices for b in choice})
        self._pressed = [
            np.array([[choice.get(b, 0.0) for b in self.names] for choice in choices])
            for choices in scenario.actions
        ]

    def pressed(self, action_A: NDArray[Any]) -> list[float]:
        """Return the engine's input for an action [A]: one number for each button in `names`.

        The number is 1 for a pressed button and 0 for another button. For a delta button: degrees per tic.
        """
        held = [table[choice] for table, choice in zip(self._pressed, action_A.tolist(), strict=True)]
        return [float(value) for value in np.sum(held, axis=0)]


class Senses:
    """Reader of game variables, and their conversion to measurements and events.

    also: further variables to read.
    names: names of the V variables that are read. A reading of R players is [R, V].
    events: names of the E events with a coefficient.
    """

    def __init__(self, scenario: Scenario, also: tuple[str, ...] = ()) -> None:
        scale = _scales(scenario)
        self._arms, self._scale = scenario.arms, list(scale.values())
        self.events = [n for n in scenario.shaping if n != OWN_REWARD]
        watched = {v for n in self.events for v in EVENTS[n].variables}
        self.names = sorted(
            {*scale, *watched, *also, "KILLCOUNT", "FRAGCOUNT", "DEATHCOUNT", "HEALTH", "SELECTED_WEAPON"}
        )
        self._variables = [getattr(vizdoom.GameVariable, n) for n in self.names]
        self._measured = [self.names.index(n) for n in scale]
        self._owned_V = np.array([n.startswith(POSSESSIONS) for n in self.names])
        sign = {e: -1.0 if EVENTS[e].down else 1.0 for e in self.events}
        change = [[sign[e] * (v in EVENTS[e].variables) for e in self.events] for v in self.names]
        self._change_VE = np.array(change)

    def read(self, game: Any) -> list[float]:
        """Return the current game variables [V] of a game's player, in the order of `names`."""
        return [game.get_game_variable(v) for v in self._variables]

    def of(self, name: str, values_RV: NDArray[np.float64]) -> NDArray[np.float64]:
        """Select one game variable [R] from a reading [R, V]. name: one of `names`."""
        column: NDArray[np.float64] = values_RV[:, self.names.index(name)]
        return column

    def happened(self, before_RV: NDArray[np.float64], after_RV: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the amount of each event between two readings of the game variables, [R, E] of at least 0."""
        change_RV = after_RV - before_RV
        reborn_R = (self.of("DEATHCOUNT", change_RV) > 0) | (self.of("HEALTH", before_RV) <= 0)
        change_RV *= ~np.outer(reborn_R, self._owned_V)
        events: NDArray[np.float64] = np.maximum(change_RV @ self._change_VE, 0.0)
        return events

    def measurements(self, values_RV: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert a reading of the game variables to the observation "measurements", within 0..MOST_MEASURED.

        The result is [R, N]. N is the result of the function `measurements`.
        """
        measured = values_RV[:, self._measured] / self._scale
        if self._arms:
            slot_R = self.of("SELECTED_WEAPON", values_RV)
            measured = np.concatenate((measured, slot_R[:, None] == np.array(SLOTS)), axis=1)
        return np.clip(measured, 0.0, MOST_MEASURED)


def measurements(scenario: Scenario) -> int:
    """Return the number of entries of the observation "measurements"."""
    return len(_scales(scenario)) + (len(SLOTS) if scenario.arms else 0)


def _scales(scenario: Scenario) -> dict[str, float]:
    return {**MEASURED, **(MEASURED_ARMS if scenario.arms else {})}
