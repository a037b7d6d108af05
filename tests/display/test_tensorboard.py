"""The event files, as TensorBoard reads them."""

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pbt_rl.display.tensorboard import TensorBoard, read_scalars
from pbt_rl.record.folder import RunFolder
from tests.helpers.views import INITIAL, STATS, member, view


def fail(text):
    raise AssertionError(f"unexpected warning: {text}")


def written(run_dir: Path, folder: str) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run_dir / folder))
    events.Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert read_scalars(run_dir / folder) == found, "as the report reads them"
    return found


def write(run_dir, *views, config_json="{}", warn=fail):
    display = TensorBoard(RunFolder(run_dir), len(views[0].members), config_json=config_json, warn=warn)
    for shown in views:
        display.update(shown)
    display.close()


def test_each_policy_and_the_population_have_a_folder_with_their_numbers(tmp_path):
    write(tmp_path, view(member(0, -3.0), member(1, 5.0, learning_rate=1e-3, shaping__life_lost=-2.0)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy_00", "policy_01", "population"]
    policy = written(tmp_path, "policy_01")
    expected = {
        "episodes/objective": 5.0,
        "episodes/ended": 7,
        "episodes/environments_ended": 1.0,
        "hypers/learning_rate": 1e-3,
        "hypers/gamma": 0.99,
        "hypers/unroll": 32.0,
        "shaping/life_lost": -2.0,
        "pbt/generation": 2,
    }
    for name, value in STATS.items():
        group = "episodes" if name in ("raw_return", "shaped_return", "length_steps") else "learning"
        expected[f"{group}/{name}"] = value
    assert {tag: points[0][1] for tag, points in policy.items()} == pytest.approx(expected)
    assert {points[0][0] for points in policy.values()} == {1000}

    population = written(tmp_path, "population")
    assert {tuple(step for step, _ in points) for points in population.values()} == {(8000,)}
    assert {tag: points[0][1] for tag, points in population.items()} == pytest.approx(
        {
            "episodes/objective_best": 5.0,
            "episodes/objective_mean": 1.0,
            "episodes/objective_spread": 4.0,
            "throughput/frames_per_second": 800.0,
            "throughput/waiting_threads": 0.6,
            "throughput/actors_restarted": 1,
            "throughput/learners_replaced": 1,
            "throughput/discarded_rollouts": 4,
            "throughput/lag_mean": 1.25,
            "throughput/lag_max": 6,
            "throughput/cpu_environment": 0.75,
            "throughput/cpu_learning": 0.25,
            "pbt/replacements": 3,
            "pbt/mutations": 5,
        }
    )


@pytest.mark.parametrize("objective", [None, math.nan, math.inf])
def test_what_is_unknown_is_not_written(tmp_path, objective):
    unknown = member(0, objective, learning_rate=math.nan)
    unknown.stats.clear()
    write(tmp_path, view(unknown))
    assert sorted(written(tmp_path, "policy_00")) == [
        "episodes/ended",
        "episodes/environments_ended",
        "hypers/gamma",
        "hypers/unroll",
        "pbt/generation",
        "shaping/life_lost",
    ]
    assert not any("objective" in tag for tag in written(tmp_path, "population"))


def test_constants_have_no_curve(tmp_path):
    moved = replace(member(0), initial=INITIAL | {"unroll": 16.0})
    write(tmp_path, view(moved, member(1, gamma=0.9), tuned=frozenset({"learning_rate"})))
    values = {tag for tag in written(tmp_path, "policy_00") if tag.startswith(("hypers/", "shaping/"))}
    assert values == {"hypers/learning_rate", "hypers/gamma", "hypers/unroll"}


def test_points_grow_rarer_and_changes_are_always_written(tmp_path):
    hour = [
        view(member(0, float(s)), seconds=float(s), frames=s, replacements=int(s >= 3001))
        for s in range(1, 3601)
    ]
    write(tmp_path, *hour)
    points = dict(written(tmp_path, "population")["episodes/objective_best"])
    assert 500 < len(points) < 1000
    assert {1, 2, 3, 3001, 3600} <= set(points)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr("pbt_rl.record.append.RETRY_SECONDS", 0.0)


def hour(second, **changes):
    """A view of each second; the frames of all rise."""
    members = [replace(member(m, float(second)), frames=second * 10) for m in range(2)]
    return view(*members, seconds=float(second), frames=second * 20, **changes)


def test_a_full_disk_is_reported_once_and_the_curves_go_on_after_it(tmp_path, faulty_disk, at_once):
    warnings = []
    display = TensorBoard(RunFolder(tmp_path), 2, config_json="{}", warn=warnings.append)
    for second in range(1, 40):
        if second == 10:
            faulty_disk.room = 700  # enough for the population once, and for half a record
        if second == 30:
            faulty_disk.room = None
        display.update(hour(second))
    display.close()
    failed, again = warnings
    assert "No space" in failed
    assert "again" in again
    for folder, factor in (("population", 20), ("policy_00", 10), ("policy_01", 10)):
        for tag, points in written(tmp_path, folder).items():
            steps = [step // factor for step, _ in points]
            assert sorted(set(steps)) == steps, (folder, tag)
            assert set(steps) >= {*range(1, 10), *range(30, 40)}, (folder, tag)
            assert len(steps) <= 21, (folder, tag)


def test_a_view_that_was_written_in_part_is_completed(tmp_path, faulty_disk, at_once):
    display = TensorBoard(RunFolder(tmp_path), 2, config_json="{}", warn=lambda _: None)
    display.update(hour(1))
    faulty_disk.room = 600  # enough for the population
    display.update(hour(2, replacements=9))
    faulty_disk.room = None
    assert len(written(tmp_path, "population")["episodes/objective_best"]) == 2
    display.close()
    assert written(tmp_path, "population")["episodes/objective_best"] == [(20, 1.0), (40, 2.0)]
    for name in ("policy_00", "policy_01"):
        assert written(tmp_path, name)["episodes/objective"] == [(10, 1.0), (20, 2.0)]


FRAMES = (400, 200, 200)
"""Of the population and of each member, at the checkpoint."""


def resume(run_dir, *, until=20, end=40):
    display = TensorBoard(RunFolder(run_dir), 2, config_json="{}", warn=fail, resumed=FRAMES)
    display.update(replace(hour(until), seconds=until + 0.2))  # no frame since the checkpoint
    for second in range(until + 1, end):
        display.update(hour(second))
    display.close()


def steps(run_dir, folder, tag):
    return [step for step, _ in written(run_dir, folder)[tag]]


def killed(run_dir):
    """Write what a run did until it was killed, beyond the checkpoint that it is resumed from."""
    display = TensorBoard(RunFolder(run_dir), 2, config_json="{}", warn=fail)
    for second in range(1, 30):
        display.update(hour(second))


@pytest.mark.parametrize("times", [1, 2])
def test_a_resumed_run_has_every_step_once_as_tensorboard_reads_it(tmp_path, times):
    killed(tmp_path)
    if times == 2:
        resume(tmp_path, end=25)
    resume(tmp_path)
    assert steps(tmp_path, "population", "episodes/objective_best") == [20 * s for s in range(1, 40)]
    for name in ("policy_00", "policy_01"):
        assert steps(tmp_path, name, "episodes/objective") == [10 * s for s in range(1, 40)]


def test_a_torn_last_record_hides_nothing_that_comes_later(tmp_path):
    killed(tmp_path)
    [torn] = tmp_path.glob("policy_00/events*")
    os.truncate(torn, torn.stat().st_size - 20)
    resume(tmp_path)
    assert steps(tmp_path, "policy_00", "episodes/objective") == [10 * s for s in range(1, 40)]


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path):
    (tmp_path / "population").write_text("in the way")
    with pytest.raises(OSError, match="population"):
        TensorBoard(RunFolder(tmp_path), 1, config_json="{}", warn=fail)


def test_a_full_disk_is_not_tried_at_every_view(tmp_path, faulty_disk):
    warnings = []
    display = TensorBoard(RunFolder(tmp_path), 2, config_json="{}", warn=warnings.append)
    faulty_disk.room = 0
    for second in range(1, 40):
        display.update(hour(second))
    assert faulty_disk.attempts == len(warnings) == 1
    faulty_disk.room = None
    display.close()
    assert written(tmp_path, "policy_01")["episodes/objective"] == [(390, 39.0)]
