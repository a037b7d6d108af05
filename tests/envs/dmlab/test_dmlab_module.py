"""The rules of the module that the code relies on: of the stand-in, and of the real one if it is installed."""

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
