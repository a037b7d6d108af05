"""Scenarios of `vizdoom/NAME`: buttons, rewards, objectives and time limits.

docs/reference/vizdoom.md has a table of the tasks.

The script of a scenario defines its reward. Examples:

    basic              106 for the kill, -1 per tic, -5 per shot
    deadly_corridor    distance gained, -100 for a death
    my_way_home        1 for the goal, -0.0001 per tic
    predict_position   1 for the hit, -0.001 per tic

deathmatch_bots runs on the first map of `cig.wad` against the engine's bots. The player respawns after a death, and
the episode continues. The number of frags is the number of killed bots minus the number of suicides. In the duels, both
players are trained. `duel` runs on `multi_duel.wad`, and `duel_arena` on the first map of `cig.wad`.
`multi_deathmatch.wad` is not used, because its script ends the game when the guest is killed, but not when the host is
killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Buttons = Mapping[str, float]
"""Button of the engine -> 1 if the button is pressed. For a delta button, which turns the player: degrees per tic."""
NOTHING: Buttons = {}

STRAFE: tuple[Buttons, ...] = (NOTHING, {"MOVE_LEFT": 1}, {"MOVE_RIGHT": 1})
WALK: tuple[Buttons, ...] = (NOTHING, {"MOVE_FORWARD": 1}, {"MOVE_BACKWARD": 1})
FORWARD: tuple[Buttons, ...] = (NOTHING, {"MOVE_FORWARD": 1})
TURN: tuple[Buttons, ...] = (NOTHING, {"TURN_LEFT": 1}, {"TURN_RIGHT": 1})
ATTACK: tuple[Buttons, ...] = (NOTHING, {"ATTACK": 1})
SPRINT: tuple[Buttons, ...] = (NOTHING, {"SPEED": 1})
AIM: tuple[Buttons, ...] = tuple(
    {"TURN_LEFT_RIGHT_DELTA": degrees} for degrees in (0.0, -10.0, -4.0, -1.25, 1.25, 4.0, 10.0)
)
WEAPON: tuple[Buttons, ...] = (NOTHING, *({f"SELECT_WEAPON{slot}": 1.0} for slot in range(1, 7)))


@dataclass(frozen=True)
class Event:
    """Event that may be rewarded in each step, such as a hit.

    The amount of an event in a step is the rise of the sum of its game variables. If `down` is True, the amount is the
    fall of this sum.
    """

    variables: tuple[str, ...]
    down: bool = False


_AMMO = ("AMMO2", "AMMO3", "AMMO5", "AMMO6")  # slot 4 uses the ammunition of slot 2
EVENTS: Mapping[str, Event] = {
    "kill": Event(("KILLCOUNT",)),
    "hit": Event(("HITCOUNT",)),
    "damage": Event(("DAMAGECOUNT",)),
    "damage_taken": Event(("DAMAGE_TAKEN",)),
    "frag": Event(("FRAGCOUNT",)),
    "suicide": Event(("FRAGCOUNT",), down=True),
    "death": Event(("DEATHCOUNT",)),
    "health": Event(("HEALTH",)),
    "armor": Event(("ARMOR",)),
    "ammo": Event(_AMMO),
    "ammo_spent": Event(_AMMO, down=True),
    "weapon.shotgun": Event(("WEAPON3",)),
    "weapon.chaingun": Event(("WEAPON4",)),
    "weapon.rocket_launcher": Event(("WEAPON5",)),
    "weapon.plasma_rifle": Event(("WEAPON6",)),
}
"""Name in the shaping -> event. The shaping value is the coefficient of the event in the reward."""

OWN_REWARD = "reward"
"""Name of the shaping value that is the factor on the scenario's reward."""

MEASURED: Mapping[str, float] = {"HEALTH": 100.0, "ARMOR": 100.0, "SELECTED_WEAPON_AMMO": 50.0}
"""Game variable in the observation "measurements" -> divisor."""
MEASURED_ARMS: Mapping[str, float] = {f"WEAPON{n}": 1.0 for n in range(1, 7)} | dict.fromkeys(_AMMO, 50.0)
"""Further measurements in scenarios with a choice of weapons: game variable -> divisor."""
SLOTS = range(1, 7)
"""Weapon slots. In scenarios with a choice of weapons, the selected weapon slot is a one-hot measurement."""


@dataclass(frozen=True)
class Scenario:
    """Description of a scenario. Its map, difficulty and reward are in the file NAME.cfg of the package vizdoom.

    shaping: name in EVENTS, or OWN_REWARD -> default coefficient.
    objective: sum of the scenario's rewards, or number of kills, frags (minus suicides) or tics of an episode.
    """

    actions: tuple[tuple[Buttons, ...], ...]
    """Components of an action. Each component is a tuple of choices. A choice contains the buttons to press."""
    shaping: Mapping[str, float]
    objective: Literal["reward", "kills", "frags", "tics"]
    limit: int
    """Tics after which an episode is truncated."""
    arms: bool = False
    """True if there is a choice of weapons."""
    core: str = "none"
    """Default of --model.core: a GRU if the scenario needs memory."""
    frames: int = 10_000_000
    """Default of --train-for-frames."""
    bots: int = 0
    """Number of the engine's bots. A game with bots is a multiplayer game."""
    config: str = ""
    """NAME of the file NAME.cfg. Empty: the scenario's name."""
    agents: int = 1
    """Number of trained players."""


_BASIC = Scenario(
    (STRAFE, ATTACK), {"reward": 0.01, "hit": 0.2, "ammo_spent": -0.02}, "reward", 300, frames=2_000_000
)
_GATHER = Scenario((TURN, FORWARD), {"reward": 0.01, "health": 0.02, "damage_taken": -0.01}, "tics", 2100)
_DUEL = Scenario(
    (WALK, STRAFE, AIM, ATTACK),
    {
        "frag": 1.0,
        "suicide": -1.0,
        "hit": 0.1,
        "damage": 0.005,
        "damage_taken": -0.003,
        "death": -0.3,
        "ammo_spent": -0.01,
    },
    "frags",
    2100,
    frames=30_000_000,
    agents=2,
)
_DEFEND = {"reward": 1.0, "hit": 0.1, "damage_taken": -0.005, "ammo_spent": -0.02}

SCENARIOS: Mapping[str, Scenario] = {
    "basic": _BASIC,
    "simpler_basic": _BASIC,
    "rocket_basic": _BASIC,
    "predict_position": Scenario((TURN, ATTACK), {"reward": 1.0, "hit": 0.2}, "reward", 300),
    "deadly_corridor": Scenario(
        (WALK, STRAFE, TURN, ATTACK),
        {"reward": 0.01, "kill": 0.5, "hit": 0.1, "damage_taken": -0.01, "ammo_spent": -0.01},
        "reward",
        2100,
    ),
    "my_way_home": Scenario((FORWARD, STRAFE, TURN), {"reward": 1.0}, "reward", 2100, core="gru"),
    "defend_the_center": Scenario((TURN, ATTACK), _DEFEND, "kills", 2100),
    "defend_the_line": Scenario((TURN, ATTACK), _DEFEND, "kills", 4200),
    "health_gathering": _GATHER,
    "health_gathering_supreme": _GATHER,
    "take_cover": Scenario((STRAFE,), {"reward": 0.01, "damage_taken": -0.01}, "tics", 4200),
    "deathmatch": Scenario(
        (WALK, STRAFE, AIM, ATTACK, SPRINT, WEAPON),
        {
            "kill": 1.0,
            "hit": 0.02,
            "damage": 0.003,
            "damage_taken": -0.003,
            "death": -0.5,
            "health": 0.005,
            "armor": 0.005,
            "ammo": 0.002,
            "weapon.shotgun": 0.15,
            "weapon.chaingun": 0.15,
            "weapon.rocket_launcher": 0.15,
            "weapon.plasma_rifle": 0.15,
        },
        "kills",
        4200,
        arms=True,
        core="gru",
        frames=100_000_000,
    ),
    "deathmatch_bots": Scenario(
        (WALK, STRAFE, AIM, ATTACK, SPRINT),
        {
            "frag": 1.0,
            "suicide": -0.5,
            "hit": 0.02,
            "damage": 0.003,
            "damage_taken": -0.003,
            "death": -0.3,
            "health": 0.005,
            "armor": 0.005,
            "ammo": 0.01,
        },
        "frags",
        4200,
        core="gru",
        frames=100_000_000,
        bots=7,
        config="cig",
    ),
    "duel": replace(_DUEL, config="multi_duel"),
    "duel_arena": replace(
        _DUEL,
        actions=(WALK, STRAFE, AIM, ATTACK, SPRINT),
        shaping={**_DUEL.shaping, "health": 0.005, "armor": 0.005, "ammo": 0.01},
        core="gru",
        frames=100_000_000,
        config="cig",
    ),
}
