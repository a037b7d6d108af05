"""A stand-in for the native module `deepmind_lab`: its rules to the letter, and a tiny world that can be learned.

Where the module would go wrong without a word (a view with strides, several threads, a closed Lab, Labs that share a
folder) it raises AssertionError. As the engine it never gives back the descriptors of a Lab. The same tests run on the
real module where that is installed.

The world: one half of the picture is bright, and for every frame in which one looks to that side there is 0.25, to
the other side -0.0625. The side is drawn anew every 4 frames. In `skymaze_*` FIRE gives 10 and ends the episode.

Environment variables, read when a Lab is made:
    DMLAB_STANDIN_LOG       file to which every Lab, reset and cache call is written, a line of JSON each
    DMLAB_STANDIN_COMPILE   seconds that a map takes to compile (default 0)
    DMLAB_STANDIN_RESET     seconds that every reset takes (default 0)
    DMLAB_STANDIN_GPUS      number of GPUs on which it can draw (default 3; -1: it is built without); with
                            another one the first reset ends the process, as the engine's does
    DMLAB_STANDIN_TROUBLE   CALL:N:WHAT, such as step:30:crash: at its N-th call of a Lab a method will `crash`
                            (abort the process), `hang`, or `raise`
"""

# ruff: noqa: SIM905 - lists of words read better so

import hashlib
import json
import operator
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

_ENGINE = set(
    "width height fps levelDirectory appendCommand mixerSeed server client port serverPort hasAltCameras "
    "maxAltCameraWidth maxAltCameraHeight localLevelCache globalLevelCache vmMode logToStdErr minimalUI reducedUI "
    "nativeApp record demo video demofiles use_pbos gpuDeviceIndex playerName".split()
)
_TOLERATED = set(
    "episodeLengthSeconds invocationMode allowHoldOutLevels levelGenerator playerId players randomSeed datasetPath "
    "enableCameraMovement logLevel gadgetSelect gadgetSwitch camera cameraLook".split()
)
_DMLAB30 = (
    "rooms_collect_good_objects_train rooms_collect_good_objects_test rooms_exploit_deferred_effects_train "
    "rooms_exploit_deferred_effects_test rooms_select_nonmatching_object rooms_watermaze rooms_keys_doors_puzzle "
    "language_select_described_object language_select_located_object language_execute_random_task "
    "language_answer_quantitative_question lasertag_one_opponent_small lasertag_three_opponents_small "
    "lasertag_one_opponent_large lasertag_three_opponents_large natlab_fixed_large_map natlab_varying_map_regrowth "
    "natlab_varying_map_randomized skymaze_irreversible_path_hard skymaze_irreversible_path_varied "
    "psychlab_arbitrary_visuomotor_mapping psychlab_continuous_recognition psychlab_sequential_comparison "
    "psychlab_visual_search explore_object_locations_small explore_object_locations_large "
    "explore_obstructed_goals_small explore_obstructed_goals_large explore_goal_locations_small "
    "explore_goal_locations_large explore_object_rewards_few explore_object_rewards_many"
).split()
_PLAIN = {"lt_chasm": None, "tests/empty_room_test": 3600, "tests/event_test": 1}
"""Levels that refuse no setting -> seconds of an episode; None: as the setting says."""
_BARE = ("tests/event_test",)
"""Levels with neither instructions nor a clock, which end by their own rules."""
_IN_CONSTRUCTOR = ("tests/empty_room_test",)
_MAPS = {
    "explore": "explore_maze",
    "lasertag": "lt_procedural",
    "skymaze": "platforms_map",
    "language": "language_map",
}
"""Levels that compile maps -> name of all of them, in the folder `baselab` of the temporary one."""
_DATASET = ("psychlab_arbitrary_visuomotor_mapping", "psychlab_continuous_recognition")
_ACTIONS = [
    ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", -512, 512),
    ("LOOK_DOWN_UP_PIXELS_PER_FRAME", -512, 512),
    ("STRAFE_LEFT_RIGHT", -1, 1),
    ("MOVE_BACK_FORWARD", -1, 1),
    ("FIRE", 0, 1),
    ("JUMP", 0, 1),
    ("CROUCH", 0, 1),
]
_LOOK, _FIRE = 0, 4
_SECONDS = 12
_CREATED, _RUNNING, _TERMINATED, _CLOSED = range(4)


def version():
    return "1.0"


_made = 0


def _count():
    """Lose 4 descriptors for ever, as the engine does, which then fails at 1,024 of them."""
    global _made  # noqa: PLW0603
    _made += 1
    for _ in range(4):
        if os.open(os.devnull, os.O_RDONLY) >= 1024:
            raise RuntimeError("Failed to connect RL API")


class Lab:
    def __init__(self, level, observations, config, renderer, level_cache):
        self._thread = threading.get_ident()
        self._status = _CREATED
        assert isinstance(observations, list)
        assert isinstance(config, dict)
        for text in (level, renderer, *observations, *config, *config.values()):
            if not isinstance(text, str):
                raise TypeError("bad argument type for built-in operation")
        assert renderer in ("software", "hardware")
        if renderer == "hardware" and os.environ.get("DMLAB_STANDIN_GPUS") == "-1":
            print("Failed to open library! - libdmlab_headless_hw.so", file=sys.stderr, flush=True)
            raise RuntimeError("Failed to connect RL API")
        _count()
        self._say("lab", made=_made, level=level, observations=observations, config=config, renderer=renderer)
        self._config, self._cache, self._renderer = dict(config), level_cache, renderer
        self._level = "/".join(filter(None, (config.get("levelDirectory", ""), level)))
        self._name = self._level.removeprefix("contributed/dmlab30/")
        self._plain = self._level in _PLAIN
        if not self._plain and (self._name not in _DMLAB30 or self._name == self._level):
            raise RuntimeError(
                f'Failed to init environment - "Level not found: game_scripts/levels/{self._level}.lua"'
            )
        if not self._plain:
            for key, value in config.items():
                if key not in _ENGINE | _TOLERATED:
                    raise RuntimeError(
                        f'Failed to init environment - "{level}: Invalid setting: "{key}" = "{value}""'
                    )
            if self._name.endswith("_test") and config.get("allowHoldOutLevels") != "true":
                raise RuntimeError(
                    'Failed to init environment - "decorators/test_only.lua: This level must only be used during '
                    'evaluation. If you really want to use this level, add the setting "allowHoldOutLevels""'
                )
        self._width, self._height = int(config.get("width", 320)), int(config.get("height", 240))
        words = () if self._level in _BARE else ("INSTR", "FRAMES_REMAINING_AT_60")
        for name in observations:
            if name not in ("RGB_INTERLEAVED", *words):
                raise ValueError(f"Unknown observation '{name}'.")
        self._wanted = list(observations)
        parent = os.environ.get("TEST_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        self._folder = tempfile.mkdtemp(prefix="dmlab_temp_folder_", dir=parent)
        (Path(self._folder) / "baselab").mkdir()
        if config.get("logLevel", "INFO") not in ("NEVER", "ERROR", "WARN"):
            print(f"INFO: {self._level} is set up", flush=True)
        self._resets = self._steps = 0
        if self._level in _IN_CONSTRUCTOR:
            try:
                self._compile("empty room")
            except Exception as error:
                raise SystemError(f"{Lab} returned a result with an exception set") from error

    # -- what the module offers -----------------------------------------------------------------------------

    def reset(self, episode=-1, seed=None):
        self._check_open()
        operator.index(episode)
        assert seed is None or isinstance(seed, int)
        self._say("reset", level=self._level, seed=seed)
        self._resets += 1
        self._trouble("reset", self._resets)
        self._find_gpu()
        if self._name in _DATASET and self._config.get("datasetPath") != "dummy":
            path = self._config.get("datasetPath", "")
            if not (Path(path) / "0001.png").is_file():
                raise RuntimeError(
                    'Failed to start environment - "datasets/brady_konkle_oliva2008.lua: Follow instructions to '
                    'download datasets here"'
                )
        time.sleep(float(os.environ.get("DMLAB_STANDIN_RESET", "0")))
        # Without a seed the C library's generator would draw one.
        self._seed = (seed if seed is not None else time.time_ns()) & 0xFFFFFFFF
        # A first reset with a seed differs from later ones with the same.
        chance = [time.time_ns()] if self._name.startswith(("lasertag_", "lt_")) else []  # its bots
        self._rng = np.random.default_rng([self._seed, self._resets == 1, *chance])
        if self._name.partition("_")[0] in _MAPS:
            self._compile(f"{self._name} {self._seed}")
        self._frames_played = 0
        seconds = str(_PLAIN.get(self._level) or self._config.get("episodeLengthSeconds", _SECONDS))
        self._length = None if seconds == "false" else int(seconds) * 60
        self._draw()
        self._status = _RUNNING
        return True

    def step(self, action, num_steps=1):
        self._check_thread()
        if not isinstance(action, np.ndarray):
            raise TypeError(f"argument 1 must be numpy.ndarray, not {type(action).__name__}")
        if action.ndim != 1 or len(action) != len(_ACTIONS):
            raise ValueError(f"action must have shape ({len(_ACTIONS)})")
        if action.dtype != np.intc:
            raise ValueError("action must have dtype np.intc")
        assert action.flags.c_contiguous, "the module would read other numbers"
        num_steps = operator.index(num_steps)
        if self._status != _RUNNING:
            raise RuntimeError("Environment in wrong status to advance.")
        self._steps += 1
        self._trouble("step", self._steps)
        for value, (name, low, high) in zip(action.tolist(), _ACTIONS, strict=True):
            assert low <= value <= high, f"{name} {value}: the module would not check it"
        reward = 0.0
        for _ in range(num_steps):
            look = int(np.sign(action[_LOOK]))
            reward += (0.25 if look == self._side else -0.0625) * abs(look)
            self._frames_played += 1
            if self._frames_played % 4 == 0:
                self._draw()
            late = self._length is not None and self._frames_played >= self._length
            goal = self._name.startswith("skymaze_") and bool(action[_FIRE])
            reward += 10.0 * goal
            if late or goal:
                self._status = _TERMINATED
                break
        else:
            if self._name.startswith("language_") and self._frames_played % 240 == 0:
                self._compile(f"{self._name} {self._frames_played}")  # another map in the middle
        return reward

    def observations(self):
        self._check_thread()
        if self._status != _RUNNING:
            raise RuntimeError("Environment in wrong status for call to observations()")
        seen = {}
        for name in self._wanted:
            if name == "RGB_INTERLEAVED":
                picture = np.full((self._height, self._width, 3), 60, np.uint8)
                half = self._width // 2
                picture[:, half:] = 200 if self._side > 0 else 60
                picture[:, :half] = 60 if self._side > 0 else 200
                picture[..., 2] = len(self._name) * 5 % 256
                picture[0, 0] = self._pixel
                seen[name] = picture
            elif name == "INSTR":
                seen[name] = "Pick up the Red ball!" if self._name.startswith("language_") else ""
            else:  # a level without a limit shows 0
                left = 0 if self._length is None else self._length - self._frames_played
                seen[name] = np.array([left], np.float64)
        return seen

    def is_running(self):
        return self._status == _RUNNING

    def action_spec(self):
        self._check_open()
        return [{"name": name, "min": low, "max": high} for name, low, high in _ACTIONS]

    def close(self):
        self._check_thread()
        if self._status == _CLOSED:
            return False
        self._status = _CLOSED
        shutil.rmtree(self._folder)
        return True

    # -- inside ---------------------------------------------------------------------------------------------

    def _draw(self):
        self._side = 1 if self._rng.random() < 0.5 else -1
        self._pixel = int(self._rng.integers(256))

    def _compile(self, text):
        name = _MAPS.get(self._name.partition("_")[0], "empty_room")
        key = f"{name}_noaas_{hashlib.md5(text.encode()).hexdigest()}"
        content = text.encode() * 100
        path = Path(self._folder) / "baselab" / f"{name}.pk3"
        found = False
        if self._cache is not None:
            found = self._cache.fetch(key, str(path))
            assert isinstance(found, bool)
            assert not found or path.read_bytes() == content, "the cache gave another map"
        if not found:
            time.sleep(float(os.environ.get("DMLAB_STANDIN_COMPILE", "0")))
            path.write_bytes(content)
            if self._cache is not None:
                self._cache.write(key, str(path))
        self._say("map", level=self._level, key=key, found=found)
        assert path.read_bytes() == content, "another Lab has overwritten the map"

    def _find_gpu(self):
        gpu = int(self._config.get("gpuDeviceIndex", 0))
        if self._renderer == "hardware" and gpu >= int(os.environ.get("DMLAB_STANDIN_GPUS", "3")):
            print(f"Failed to create EGL display for device index {gpu}!", file=sys.stderr, flush=True)
            os._exit(3)

    def _trouble(self, call, number):
        where, _, rest = os.environ.get("DMLAB_STANDIN_TROUBLE", "").partition(":")
        at, _, what = rest.partition(":")
        if where != call or int(at) != number:
            return
        if what == "crash":
            print("engine: something broke", file=sys.stderr, flush=True)
            os.abort()
        if what == "hang":
            time.sleep(3600)
        if call == "reset":
            raise RuntimeError('Failed to start environment - "something broke"')
        raise ValueError('Failed to advance environment "something broke"')

    def _check_open(self):
        self._check_thread()
        assert self._status != _CLOSED, "the engine's memory is freed"

    def _check_thread(self):
        assert self._thread == threading.get_ident(), "a Lab is used from several threads"

    def _say(self, kind, **facts):
        if "DMLAB_STANDIN_LOG" in os.environ:
            with Path(os.environ["DMLAB_STANDIN_LOG"]).open("a") as log:
                print(json.dumps({"kind": kind, "pid": os.getpid(), **facts}), file=log)
