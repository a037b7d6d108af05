"""DeepMind Lab from the command line: training, evaluation, map cache, errors."""

import re

import pytest

from pbt_rl.cli.envs import run_dmlab_cache
from pbt_rl.config.command import parse_train
from pbt_rl.envs.dmlab.levels import LEVELS
from pbt_rl.errors import ConfigError, EnvSetupError
from pbt_rl.play.member import MAX_ROWS
from tests.helpers.dmlab_module import REAL, calls, lab, standin_only  # noqa: F401 - lab is a fixture
from tests.helpers.runs import start, train

SHORT = "dmlab/rooms_select_nonmatching_object"
SMALL = (
    "--model.encoder=mlp --model.hidden=16 --model.layers=1 --model.core=none --learner.threads=1 "
    "--hypers.learning-rate=0.001 --env-option=episodeLengthSeconds=1"
)


@pytest.fixture
def here(lab, tmp_path):  # noqa: F811
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@standin_only
@pytest.mark.slow
def test_a_policy_learns_a_level(here):
    words = (
        "--num-policies=1 --train-for-frames=14000 --actors=1 --envs-per-vector-env=4 --model.encoder=nature "
        "--model.hidden=32 --learner.batch=256 --learner.epochs=2 --pbt.objective-episodes=20"
    )
    run = train(here, SHORT, *SMALL.split(), *words.split())
    assert run.wait() == 0, run.err
    learned = run.summary["members"][0]["objective"]
    assert learned > 6  # random actions score 2.5, the maximum is 15
    assert "INFO" not in run.out + run.err  # the engine's message


@standin_only
@pytest.mark.long
def test_thirty_levels_make_one_objective(here, lab):  # noqa: F811
    words = (
        "--num-policies=2 --train-for-frames=6000 --actors=2 --envs-per-vector-env=1 --pbt.period-frames=3800 "
        "--pbt.start-frames=0 --pbt.min-episodes=1"
    )
    run = train(here, "dmlab30", *SMALL.split(), *words.split())
    assert run.wait() == 0, run.err
    members = run.summary["members"]
    names = {level.name for level in LEVELS}
    for member in members:
        assert set(member["tasks"]) == names
    [first, *_] = run.events("round")
    seen = first["report"]["members"]
    assert len({len(member["objectives"]) for member in seen}) == 1  # one window for all
    assert all(member["episodes"] >= 1 for member in seen)
    events = b"".join(path.read_bytes() for path in (run.folder / "policy_00").iterdir())
    assert b"tasks/rooms_watermaze" in events
    assert b"task_returns/rooms_watermaze" in events
    assert not [call for call in calls(lab, "lab") if call["level"].endswith("_test")]

    played = start(here, "eval", "runs/x", "--episodes", "1")
    assert played.wait() == 0, played.err
    lines = [line.split() for line in played.out.splitlines() if line.split()[0] in names]
    assert [line[1] for line in lines] == ["1"] * 30
    counted = [min(float(line[3]), 100) for line in lines]
    mean = float(re.search(r"objective .*\b30 tasks: mean ([-0-9.]+)", played.out)[1])
    assert mean == pytest.approx(sum(counted) / 30, abs=0.05)
    tested = [call["level"] for call in calls(lab, "lab") if call["config"].get("allowHoldOutLevels")]
    assert sum(level.endswith("_test") for level in set(tested)) == 2
    assert len({call["pid"] for call in calls(lab, "reset")[-30:]}) == MAX_ROWS, "they share the levels out"


@standin_only
def test_maps_are_built_beforehand(here, lab, monkeypatch):  # noqa: F811
    command = ("dmlab-cache", "--levels", "explore_goal_locations_small", "lasertag_one_opponent_small")
    run = start(here, *command, "--level-seeds=3", "--jobs=2")
    assert run.wait() == 0, run.err
    assert re.search(r"\b2 .*\b3 .*\b2 ", run.out)
    assert re.search(r"6/6(.|\n)*\b6 .*\b0 ", run.out)
    run = start(here, *command, "--level-seeds=4", "--jobs=2")
    assert run.wait() == 0
    assert re.search(r"\b2 .*\b6 ", run.out)
    assert not list(here.iterdir()) or {p.name for p in here.iterdir()} == {"out.txt", "err.txt"}

    monkeypatch.setenv("DMLAB_STANDIN_TROUBLE", "reset:2:raise")
    run = start(here, *command, "--level-seeds=4", "--jobs=1")
    assert run.wait() == 1
    assert run.out.count('"something broke"') == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--levels nowhere", "dmlab/nowhere "),
        ("--levels lt_chasm --level-seeds 0", "--level-seeds 0 "),
        ("--levels lt_chasm --level-cache /proc/x", "--level-cache /proc/x "),
        ("--levels lt_chasm --level-cache none", "--level-cache none "),
    ],
)
def test_what_cannot_be_built_is_one_clear_error(lab, words, message):  # noqa: F811
    with pytest.raises((ConfigError, EnvSetupError), match=message):
        run_dmlab_cache(words.split())


def test_the_recipe_of_the_published_command_line(lab):  # noqa: F811
    config = parse_train(["--recipe", "dmlab30-pbt", "--hypers.gamma=0.9", "--train-for-frames=5"])
    assert (config.env, config.num_policies, config.algo) == ("dmlab30", 4, "appo")
    assert (config.dmlab.actions, config.dmlab.renderer) == ("extended", "software")
    assert (config.dmlab.reward_unit, config.dmlab.last_action_reward) == (5.0, True)
    assert (config.model.encoder, config.model.hidden, config.model.core) == ("impala", (512,), "lstm")
    assert (config.learner.rollout, config.learner.batch, config.learner.epochs) == (32, 2048, 1)
    assert config.learner.max_policy_lag == 35
    assert (config.pbt.period_frames, config.pbt.start_frames) == (10_000_000, 100_000_000)
    assert (config.pbt.replace_gap, config.pbt.replace_gap_absolute) == (0.05, 5.0)
    assert (config.hypers.gamma, config.train_for_frames) == (0.9, 5)  # options of the user take precedence
    other = parse_train(["--recipe=dmlab30-pbt", "--env", SHORT])
    assert (other.env, other.pbt.replace_gap) == (SHORT, 0.05)
