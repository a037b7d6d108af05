"""A run on DeepMind Lab, on the engine if it is installed, else on a fake engine."""

import imageio.v3
import pytest

from pbt_rl.envs.dmlab.row import load_module
from tests.helpers import runs
from tests.helpers.dmlab_module import lab  # noqa: F401 - a fixture

LEVEL = "rooms_select_nonmatching_object"
"""Its episodes are as long as they are asked to be."""
WORDS = (
    "--num-policies=2 --actors=2 --envs-per-vector-env=1 --env-option=episodeLengthSeconds=2 --learner.batch=128 "
    "--train-for-frames=1500 --pbt.start-frames=500 --pbt.period-frames=500 --pbt.min-episodes=1 "
    "--model.encoder=nature --model.hidden=32 --model.core-size=16 --learner.threads=1"
)


@pytest.mark.long
def test_a_population_is_trained_evaluated_and_filmed(lab, tmp_path):  # noqa: F811
    assert load_module().version()
    here = tmp_path / "here"
    here.mkdir()
    run = runs.train(here, f"dmlab/{LEVEL}", *WORDS.split())
    assert run.wait() == 0, run.err
    assert all(member["frames"] >= 1500 for member in run.summary["members"])
    assert run.events("round")
    played = runs.start(here, "eval", "runs/x", "--episodes", "2", "--video", "film.gif")
    assert played.wait() == 0, played.err
    assert LEVEL in played.out
    film = imageio.v3.imread(here / "film.gif")
    assert film.shape[0] >= 30, "an episode of 2 seconds has 30 steps"
    assert film.std() > 5
