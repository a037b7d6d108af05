"""The rules of the module that the code relies on: of the stand-in, and of the real one if it is installed."""

from pathlib import Path

import numpy as np
import pytest

from pbt_rl.envs.dmlab.row import load_module
from tests.helpers.dmlab_module import lab  # noqa: F401 - a fixture

LEVEL = "contributed/dmlab30/rooms_select_nonmatching_object"
SIZE = {"width": "96", "height": "72", "logLevel": "WARN"}
STILL = np.zeros(7, np.intc)


@pytest.fixture
def module(lab):  # noqa: F811
    return load_module()


@pytest.fixture
def make(module):
    made = []

    def make(level=LEVEL, observations=("RGB_INTERLEAVED",), config=SIZE, **options):
        made.append(module.Lab(level, list(observations), dict(config), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((LEVEL, ("RGB_INTERLEAVED",), {}), TypeError, None),
        ((LEVEL, ["RGB_INTERLEAVED"], {"width": 96}), TypeError, None),
        ((LEVEL, ["RGB_INTERLEAVED", "SMELL"], SIZE), ValueError, "Unknown observation 'SMELL'"),
        ((LEVEL, ["RGB_INTERLEAVED"], SIZE | {"colour": "red"}), RuntimeError, "Invalid setting"),
        (
            (LEVEL, ["RGB_INTERLEAVED"], SIZE | {"width": "90"}),
            RuntimeError,
            "Failed to apply setting 'width = 90'",
        ),
        (
            (LEVEL, ["RGB_INTERLEAVED"], {"mixerSeed": "-1"}),
            RuntimeError,
            "Failed to apply setting 'mixerSeed = -1'",
        ),
        (("contributed/dmlab30/nowhere", ["RGB_INTERLEAVED"], SIZE), RuntimeError, "Failed to init"),
        (
            ("contributed/dmlab30/rooms_collect_good_objects_test", ["RGB_INTERLEAVED"], SIZE),
            RuntimeError,
            "Failed to init",
        ),
        ((LEVEL, ["RGB_INTERLEAVED"], SIZE, "paper"), RuntimeError, "Failed to set renderer"),
        ((LEVEL, ["RGB_INTERLEAVED"], SIZE, None), TypeError, None),
        ((LEVEL, ["RGB_INTERLEAVED"], SIZE, "software", None, None), TypeError, None),
    ],
)
def test_a_wrong_constructor_raises(module, arguments, error, words):
    with pytest.raises(error, match=words):
        module.Lab(*arguments)


def test_seeds_are_plain_integers(make):
    game = make()
    for seed, kind in ((np.int64(1), "numpy.int64"), ("1", "str")):
        with pytest.raises(ValueError, match=f"'seed' must be int or None, was '{kind}'"):
            game.reset(seed=seed)
    assert game.reset(seed=2**31 - 1) is True


def test_actions_are_whole_arrays_of_c_integers(make):
    game = make()
    with pytest.raises(RuntimeError, match="wrong status"):
        game.step(STILL)
    game.reset(seed=1)
    with pytest.raises(TypeError):
        game.step([0] * 7)
    with pytest.raises(ValueError, match="shape"):
        game.step(np.zeros(6, np.intc))
    with pytest.raises(ValueError, match="dtype"):
        game.step(np.zeros(7, np.int64))
    assert isinstance(game.step(STILL, num_steps=4), float)
    assert game.num_steps() == 4


def test_after_the_end_there_is_no_observation(make):
    game = make(observations=["RGB_INTERLEAVED", "INSTR", "FRAMES_REMAINING_AT_60"])
    assert not game.is_running()
    with pytest.raises(RuntimeError, match="wrong status"):
        game.observations()
    game.reset(seed=1)
    seen = game.observations()
    assert (seen["RGB_INTERLEAVED"].shape, seen["RGB_INTERLEAVED"].dtype) == ((72, 96, 3), np.uint8)
    assert isinstance(seen["INSTR"], str)
    assert seen["FRAMES_REMAINING_AT_60"] == pytest.approx(720, abs=2)
    steps = 0
    while game.is_running():
        left = game.observations()["FRAMES_REMAINING_AT_60"][0]
        game.step(STILL, num_steps=4)
        steps += 1
    assert (steps, left <= 5) == (180, True)
    with pytest.raises(RuntimeError, match="wrong status"):
        game.observations()
    assert game.reset(seed=2)


def test_a_map_is_fetched_and_written_under_the_same_key(make, tmp_path):
    class Cache:
        def __init__(self):
            self.files, self.fetched = {}, []

        def fetch(self, key, path):
            self.fetched.append(key)
            if key not in self.files:
                return False
            Path(path).write_bytes(self.files[key])
            return True

        def write(self, key, path):
            self.files[key] = Path(path).read_bytes()

    cache = Cache()
    for _ in range(2):
        game = make("contributed/dmlab30/explore_goal_locations_small", level_cache=cache)
        game.reset(seed=5)
    assert len(cache.files) == 1
    assert len(cache.fetched) >= 2
    assert set(cache.fetched) == set(cache.files)


def test_exceptions_of_the_cache_come_out_of_reset(make):
    class Broken:
        def fetch(self, key, path):
            raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        make("contributed/dmlab30/explore_goal_locations_small", level_cache=Broken()).reset(seed=5)


def test_a_lab_makes_its_folder_in_tmpdir_and_removes_it(make, monkeypatch, tmp_path):
    monkeypatch.delenv("TEST_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    game = make("contributed/dmlab30/explore_goal_locations_small")
    game.reset(seed=5)
    assert list(tmp_path.glob("dmlab_temp_folder_*/baselab/explore_maze.pk3"))
    assert game.close() is True
    assert not list(tmp_path.glob("dmlab_temp_folder_*"))
    assert game.close() is False


def test_a_given_folder_is_used_as_it_is(make, tmp_path):
    folder = tmp_path / "told"
    folder.mkdir()
    make("contributed/dmlab30/explore_goal_locations_small", temp_folder=str(folder)).reset(seed=5)
    assert (folder / "baselab" / "explore_maze.pk3").is_file()


def test_a_level_without_a_limit_shows_no_frames_left(make):
    endless = SIZE | {"episodeLengthSeconds": "false"}
    game = make(observations=["FRAMES_REMAINING_AT_60"], config=endless)
    game.reset(seed=1)
    assert game.observations()["FRAMES_REMAINING_AT_60"] == 0


def test_not_every_level_has_instructions_and_a_clock(module):
    for name in ("INSTR", "FRAMES_REMAINING_AT_60"):
        with pytest.raises(ValueError, match=f"Unknown observation '{name}'"):
            module.Lab("tests/event_test", [name], dict(SIZE))


def test_two_levels_need_pictures(make):
    level = "contributed/dmlab30/psychlab_continuous_recognition"
    with pytest.raises(RuntimeError, match="Failed to start environment"):
        make(level).reset(seed=1)
    assert make(level, config=SIZE | {"datasetPath": "dummy"}).reset(seed=1)
