"""Levels of DMLab-30 with reference scores, and the action sets.

The scores of humans and of random actions are from Espeholt et al. 2018 (IMPALA), table C.1, as in `dmlab30.py` of the
published code. Two levels have separate scripts for training (`_train`) and testing (`_test`). The scores of these two
levels are for the test scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FOLDER = "contributed/dmlab30/"
TASK_CAP = 100.0
"""Cap of a level's mean human-normalised score, in percent (see `Level.percent`)."""
TEST_MIXER_SEED = 0x600D5EED
"""Value of the engine's setting `mixerSeed` in evaluations. Training uses the default value, so all maps of evaluations
differ from the maps of training.
"""


@dataclass(frozen=True)
class Level:
    """Level of DMLab-30. human, random: mean returns of humans, and of random actions."""

    name: str
    """Name without `_train` or `_test`."""
    human: float
    random: float
    split: bool = False
    """True if training and tests have different scripts."""
    dataset: bool = False
    """True if the level shows photographs of a data set."""

    def script(self, *, test: bool) -> str:
        """Return the engine's name of the level. test: True for the test script of a level with two scripts."""
        return f"{FOLDER}{self.name}{('_test' if test else '_train') if self.split else ''}"

    def percent(self, score: float) -> float:
        """Return the human-normalised score in percent: 0 for random actions, 100 for a human. Not capped.

        score: return of an episode.
        """
        return 100.0 * (score - self.random) / (self.human - self.random)


LEVELS = (
    Level("rooms_collect_good_objects", 10, 0.073, split=True),
    Level("rooms_exploit_deferred_effects", 85.65, 8.501, split=True),
    Level("rooms_select_nonmatching_object", 65.9, 0.312),
    Level("rooms_watermaze", 54, 4.065),
    Level("rooms_keys_doors_puzzle", 53.8, 4.135),
    Level("language_select_described_object", 389.5, -0.07),
    Level("language_select_located_object", 280.7, 1.929),
    Level("language_execute_random_task", 254.05, -5.913),
    Level("language_answer_quantitative_question", 184.5, -0.33),
    Level("lasertag_one_opponent_small", 12.65, -0.224),
    Level("lasertag_three_opponents_small", 18.55, -0.214),
    Level("lasertag_one_opponent_large", 18.6, -0.083),
    Level("lasertag_three_opponents_large", 31.5, -0.102),
    Level("natlab_fixed_large_map", 36.9, 2.173),
    Level("natlab_varying_map_regrowth", 24.45, 2.989),
    Level("natlab_varying_map_randomized", 42.35, 7.346),
    Level("skymaze_irreversible_path_hard", 100, 0.1),
    Level("skymaze_irreversible_path_varied", 100, 14.4),
    Level("psychlab_arbitrary_visuomotor_mapping", 58.75, 0.163, dataset=True),
    Level("psychlab_continuous_recognition", 58.3, 0.224, dataset=True),
    Level("psychlab_sequential_comparison", 39.5, 0.129),
    Level("psychlab_visual_search", 78.5, 0.085),
    Level("explore_object_locations_small", 74.45, 3.575),
    Level("explore_object_locations_large", 65.65, 4.673),
    Level("explore_obstructed_goals_small", 206, 6.76),
    Level("explore_obstructed_goals_large", 119.5, 2.61),
    Level("explore_goal_locations_small", 267.5, 7.66),
    Level("explore_goal_locations_large", 194.5, 3.14),
    Level("explore_object_rewards_few", 77.7, 2.073),
    Level("explore_object_rewards_many", 106.7, 2.438),
)

Pressed = Mapping[str, int]
"""Name in the engine's action spec -> value of this part of the action. Names without an entry have the value 0."""

_LOOK, _TILT = "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", "LOOK_DOWN_UP_PIXELS_PER_FRAME"
_STRAFE, _MOVE, _FIRE = "STRAFE_LEFT_RIGHT", "MOVE_BACK_FORWARD", "FIRE"

_WALK: tuple[Pressed, ...] = ({_MOVE: 1}, {_MOVE: -1}, {_STRAFE: -1}, {_STRAFE: 1})
ACTIONS: Mapping[str, tuple[Pressed, ...]] = {
    "standard": (
        *_WALK,
        {_LOOK: -20},
        {_LOOK: 20},
        {_LOOK: -20, _MOVE: 1},
        {_LOOK: 20, _MOVE: 1},
        {_FIRE: 1},
    ),
    "extended": (
        *_WALK,
        {_LOOK: -10},
        {_LOOK: 10},
        {_LOOK: -60},
        {_LOOK: 60},
        {_TILT: 10},
        {_TILT: -10},
        {_LOOK: -10, _MOVE: 1},
        {_LOOK: 10, _MOVE: 1},
        {_LOOK: -60, _MOVE: 1},
        {_LOOK: 60, _MOVE: 1},
        {_FIRE: 1},
    ),
}
"""`standard`: the 9 actions of IMPALA. `extended`: the 15 actions of Hessel et al. 2018 (PopArt), with two turning
speeds.
"""
