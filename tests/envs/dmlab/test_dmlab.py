"""DeepMind Lab as a vector env, on the engine if it is installed, else on a fake engine."""

import signal
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import psutil
import pytest

from pbt_rl.envs.dmlab import lab_processes as dmlab_process
from pbt_rl.envs.dmlab.dmlab_options import DmlabOptions
from pbt_rl.envs.dmlab.lab_processes import Labs
from pbt_rl.envs.dmlab.levels import LEVELS
from pbt_rl.envs.dmlab.row import MOST_LABS
from pbt_rl.envs.dmlab.vector_env import LabVectorEnv, level_scripts, pool_seed, probe, row_setup
from pbt_rl.errors import EnvSetupError
from tests.helpers import played
from tests.helpers.dmlab_module import REAL, calls, lab, standin_only  # noqa: F401 - lab is a fixture

pytestmark = pytest.mark.usefixtures("lab")

SHORT = "rooms_select_nonmatching_object"
"""Episodes of 12 seconds, 180 steps."""
TOGETHER = {"background_resets": False}
FORWARD, FIRE = 0, 8


class Played(played.Played):
    """Vector env of a level, with its step arrays."""

    def __init__(self, name, rows=1, seed=0, settings=None, first_row=0, **options):
        self.shaping = (0, {"gain_scale": 5.0, "loss_scale": 0.3})
        options, shaping = DmlabOptions(**{**TOGETHER, **options}), lambda _row: self.shaping
        super().__init__(LabVectorEnv(name, rows, seed, options, settings or {}, shaping, first_row))

    def step(self, *action):
        return super().step(np.reshape(action, (-1, 1)))


def test_an_episode_that_time_ends_is_truncated_with_its_last_picture():
    with Played(SHORT) as game:
        start = game.steps[0]
        assert start["first"][0]
        assert start["obs"].std() > 5
        for number in range(1, 181):
            last = game.step(FORWARD)
            assert (last["truncated"][0], last["terminated"][0]) == (number == 180, False)
            assert not last["first"][0]
        assert last["episode_done"][0]
        assert last["length"][0] == 180
        assert last["objective"][0] == last["raw_return"][0]
        np.testing.assert_array_equal(last["obs"], game.steps[-2]["obs"])
        reset = game.step(FORWARD)
        assert (reset["first"][0], reset["reward"][0], reset["length"][0]) == (True, 0, 0)
        assert not reset["episode_done"][0]
        assert not game.step(FORWARD)["first"][0]


def test_equal_seeds_give_equal_steps_and_different_seeds_different_ones():
    histories = []
    for seed in (1, 1, 2):
        with Played(SHORT, rows=2, seed=seed) as game:
            histories.append(game.random(200))
    one, again, other = histories
    assert one["episode_done"].sum() == 2
    for field, array in one.items():
        np.testing.assert_array_equal(array, again[field])
    assert (one["obs"] != other["obs"]).any()
    assert (one["obs"][:, 0] != one["obs"][:, 1]).any()


@pytest.mark.parametrize(("clipped", "unit"), [(True, 1.0), (True, 5.0), (False, 5.0)])
def test_rewards_are_clipped_towards_gains_and_the_objective_is_not(clipped, unit):
    level = "skymaze_irreversible_path_varied" if REAL else SHORT
    seconds = {} if REAL else {"episodeLengthSeconds": 3}
    with Played(level, settings=seconds, clip_reward=clipped, reward_unit=unit) as game:
        seen = game.random(100)
    assert REAL or seen["episode_done"].sum() == 2
    # In the step after an end the return begins at 0 again.
    raw = np.diff(seen["raw_return"][:, 0])
    raw[seen["first"][1:, 0]] = 0
    assert REAL or (raw.min() < 0 < raw.max())
    learned = np.tanh(raw / unit) if clipped else raw
    expected = 5 * np.maximum(learned, 0) + 0.3 * np.minimum(learned, 0)
    np.testing.assert_allclose(seen["reward"][1:, 0], expected, rtol=1e-5)
    begun = int(np.flatnonzero(seen["first"][:, 0])[-1])
    np.testing.assert_allclose(seen["shaped_return"][-1], expected[begun:].sum(), rtol=1e-4)


def test_a_probe_finds_bad_levels_and_settings():
    assert probe("dmlab30", DmlabOptions(), {}).tasks[3] == "rooms_watermaze"
    assert probe("tests/empty_room_test", DmlabOptions(), {})
    with pytest.raises(EnvSetupError, match=r"dmlab/nowhere .*RuntimeError: "):
        probe("nowhere", DmlabOptions(), {})
    with pytest.raises(EnvSetupError, match=r"Invalid setting.*colour.*red"):
        probe(SHORT, DmlabOptions(), {"colour": "red"})
    with pytest.raises(EnvSetupError, match=r"--env-option width="):
        probe(SHORT, DmlabOptions(), {"width": 320})


@standin_only
def test_the_picture_is_upright():
    with Played(SHORT) as game:
        for _ in range(20):
            picture = game.steps[-1]["obs"][0]
            assert picture.shape == (3, 72, 96)
            bright = picture[0, 1:].mean(0)  # by column
            side = 5 if bright[-1] > bright[0] else 4  # look right, look left
            assert game.step(side)["raw_return"][0] == game.steps[-2]["raw_return"][0] + 1


@standin_only
def test_the_end_of_a_level_by_its_own_rules_is_terminal():
    with Played("skymaze_irreversible_path_hard") as game:
        last = game.step(FIRE)
        assert (last["terminated"][0], last["truncated"][0], last["episode_done"][0]) == (True, False, True)
    with Played("tests/event_test") as game:  # has neither a frame counter nor an instruction
        seen = game.random(15)
        assert (seen["terminated"][-1, 0], seen["truncated"][-1, 0]) == (True, False)
    endless = {"episodeLengthSeconds": False}  # its clock shows 0 all the time
    with Played("skymaze_irreversible_path_hard", settings=endless) as game:
        last = game.step(FIRE)
        assert (last["terminated"][0], last["truncated"][0]) == (True, False)


@standin_only
def test_a_slow_reset_delays_no_other_row(monkeypatch):
    monkeypatch.setenv("DMLAB_STANDIN_RESET", "0.8")
    long = {"episodeLengthSeconds": 3600}  # one row is resetting
    with Played("skymaze_irreversible_path_hard", rows=2, settings=long, background_resets=True) as game:
        while game.step(FORWARD)["first"].any():  # both rows are within an episode
            pass
        game.step(FIRE, FORWARD)
        began = time.monotonic()
        waiting = game.step(FORWARD)
        assert time.monotonic() - began < 0.4
        assert waiting["first"].tolist() == [True, False]
        assert not waiting["obs"][0].any()
        assert waiting["obs"][1].any()
        while (seen := game.step(FORWARD))["first"][0] and not seen["obs"][0].any():
            assert not seen["first"][1]
            time.sleep(0.02)
        assert seen["first"].tolist() == [True, False]  # the first picture of the episode
        assert game.step(FORWARD)["length"].tolist()[0] == 1


@standin_only
@pytest.mark.parametrize("together", [True, False])
def test_every_level_gets_equally_many_steps(lab, together):  # noqa: F811
    short = {"episodeLengthSeconds": 1}
    with Played("dmlab30", rows=2, settings=short, one_level_per_vector_env=together) as game:
        for _ in range(30 * 16 + 3):
            game.step(4)  # FIRE would end some levels
        seen = {name: np.stack([step[name] for step in game.steps]) for name in game.steps[0]}
    done = seen["episode_done"]
    for row in range(2):
        tasks = seen["task"][done[:, row], row].tolist()
        assert sorted(tasks[:30]) == list(range(30))
        ends = np.flatnonzero(done[:, row])
        for end, task in zip(ends, tasks, strict=True):
            score = seen["raw_return"][end, row]
            assert seen["objective"][end, row] == pytest.approx(LEVELS[task].percent(score))
    assert (seen["task"][:, 0] == seen["task"][:, 1]).all() == together
    levels = {call["level"] for call in calls(lab, "lab")}
    assert levels == set(level_scripts("dmlab30", DmlabOptions()))
    for call in calls(lab, "lab"):
        pictures = "psychlab_a" in call["level"] or "psychlab_co" in call["level"]
        assert ("datasetPath" in call["config"]) == pictures
        assert "mixerSeed" not in call["config"]


def test_a_row_never_holds_what_many_labs_leave_behind(lab):  # noqa: F811
    levels = (SHORT, "psychlab_visual_search")  # nothing compiles
    scripts = [f"contributed/dmlab30/{level}" for level in levels]
    seconds, most = [], 0
    with closing(Labs([row_setup(DmlabOptions(), {}, 0)])) as labs:
        [row] = labs.rows
        process = psutil.Process(row.program.pid)
        for number in range(2 * MOST_LABS + 2):
            row.ask("begin", scripts[number % 2], number)
            row.answer()
            seconds.append(process.cpu_times().user)
            most = max(most, process.num_fds())
        assert most < 50 + 4 * MOST_LABS
        assert seconds == sorted(seconds), "it is the same process, whose clock goes on"
        assert labs.cpu_ns() > 0
    if not REAL:
        made = [call["made"] for call in calls(lab, "lab")]
        assert made == [*range(1, MOST_LABS + 1), *range(1, MOST_LABS + 1), 1, 2]


@standin_only
def test_episodes_always_have_a_seed(lab):  # noqa: F811
    settings = {"episodeLengthSeconds": 1}
    with Played(SHORT, rows=2, settings=settings) as game:
        game.random(100)
    seeds = [call["seed"] for call in calls(lab, "reset")]
    assert len(seeds) == len(set(seeds)) == 14
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)
    with Played(SHORT, rows=2, settings=settings, level_seeds=3) as game:
        game.random(100)
    pool = {pool_seed(f"contributed/dmlab30/{SHORT}", number) for number in range(3)}
    assert {call["seed"] for call in calls(lab, "reset")[14:]} == pool


@standin_only
def test_maps_are_built_once(lab):  # noqa: F811
    for _ in range(2):
        with Played("explore_goal_locations_small", level_seeds=1, rows=1) as game:
            game.step(FORWARD)
    assert [call["found"] for call in calls(lab, "map")] == [False, True]
    with Played("explore_goal_locations_small", level_seeds=1, level_cache="none"):
        assert not calls(lab, "map")[-1]["found"]


@standin_only
@pytest.mark.parametrize(
    ("trouble", "steps", "error", "words"),
    [
        ("reset:1:raise", 0, EnvSetupError, f"dmlab/{SHORT} .*RuntimeError: "),
        ("step:5:raise", 5, RuntimeError, f"contributed/dmlab30/{SHORT}: ValueError: "),
        ("step:5:crash", 5, RuntimeError, "SIGABRT(.|\n)*engine: something broke"),
        ("step:5:hang", 5, RuntimeError, r"hangs: .*\b1 s"),
        ("reset:2:raise", 17, RuntimeError, 'RuntimeError: .*"something broke"'),
        ("reset:2:hang", 10**6, RuntimeError, r"hangs: .*\b1 s"),
    ],
)
def test_failures_are_reported_with_the_engines_message(monkeypatch, trouble, steps, error, words):
    monkeypatch.setenv("DMLAB_STANDIN_TROUBLE", trouble)

    def play():
        settings = {"episodeLengthSeconds": 1}
        with Played(SHORT, settings=settings, background_resets="reset" in trouble) as game:
            if "hang" in trouble:
                monkeypatch.setattr(dmlab_process, "SILENCE_SECONDS", 1.0)
                monkeypatch.setattr(dmlab_process, "CLOSE_SECONDS", 0.2)
            for _ in range(steps):
                game.step(FORWARD)

    with pytest.raises(error, match=words):
        play()


@standin_only
@pytest.mark.parametrize("victim", ["owner", "row", "keeper"])
def test_no_process_or_folder_is_left_after_a_kill(lab, tmp_path, victim):  # noqa: F811
    code = f"""
import numpy as np, time
from pbt_rl.envs.base import private_step_arrays
from pbt_rl.envs.dmlab.dmlab_options import DmlabOptions
from pbt_rl.envs.dmlab.lab_processes import Labs
from pbt_rl.envs.dmlab.vector_env import LabVectorEnv
env = LabVectorEnv("{SHORT}", 2, 0, DmlabOptions(), {{}}, lambda _row: (0, {{"gain_scale": 5.0, "loss_scale": 0.3}}))
out = private_step_arrays(env.spec, 2)
env.reset(out)
print("ready", flush=True)
try:
    while True:
        env.step(np.zeros((2, 1), np.int32), out)
        time.sleep(0.01)
except RuntimeError:
    env.close()
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout.readline() == "ready\n"
        keepers = psutil.Process(owner.pid).children()
        rows = [row for each in keepers for row in each.children()]
        assert [len(rows), *(row.name() for row in keepers)] == [2, "pbt_rl-keeper", "pbt_rl-keeper"]
        children = [*keepers, *rows]
        assert list(lab.glob("pbt_rl_dmlab_*/dmlab_temp_folder_*"))
        {"owner": owner, "row": rows[0], "keeper": keepers[0]}[victim].kill()
        assert owner.wait(20) == (-signal.SIGKILL if victim == "owner" else 0)
    _, alive = psutil.wait_procs(children, 10)
    assert not alive
    assert not list(lab.iterdir())


@standin_only
def test_a_card_that_is_not_there_is_found_by_the_probe(lab, monkeypatch):  # noqa: F811
    assert probe(SHORT, DmlabOptions(renderer="hardware", gpus=(0, 2)), {})
    drawn = {call["config"].get("gpuDeviceIndex") for call in calls(lab, "lab")}
    assert drawn == {"0", "2"}
    with Played(SHORT, renderer="hardware", gpus=(0, 2), first_row=3):
        assert calls(lab, "lab")[-1]["config"]["gpuDeviceIndex"] == "2", "they take turns"
    with pytest.raises(EnvSetupError, match=r"--dmlab.gpus 7 .*--dmlab.renderer"):
        probe(SHORT, DmlabOptions(gpus=(7,)), {})
    assert probe(SHORT, DmlabOptions(gpus=(7,), test=True), {})  # a run's options, at its evaluation
    with pytest.raises(EnvSetupError) as refused:
        probe(SHORT, DmlabOptions(renderer="hardware", gpus=(0, 7)), {})
    assert str(refused.value).startswith("--dmlab.gpus 0 7 ")
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("DMLAB_STANDIN_GPUS", "-1")
    said = r"--dmlab.renderer hardware .*RL API.*libdmlab_headless_hw"
    with pytest.raises(EnvSetupError, match=said):
        probe(SHORT, DmlabOptions(renderer="hardware"), {})
