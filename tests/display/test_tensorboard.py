"""The event files, as TensorBoard reads them."""

import json
import math
import os
import pickle
import re
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboardX.proto.summary_pb2 import Summary

from pbt_rl.config import Config
from pbt_rl.display.events import EventFile
from pbt_rl.display.scalars import member_scalars, population_scalars
from pbt_rl.display.tensorboard import LOWEST, Drawing, TensorBoard, layout
from pbt_rl.pbt.hypers import hyper_table
from pbt_rl.pbt.options import PbtConfig
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.resolved import build_controller
from tests.helpers import journals
from tests.helpers.views import STATS, member, view

SMALL = Config("toy/x", num_policies=4, pbt=PbtConfig(period_frames=1000, start_frames=0, min_episodes=1))
TABLE = hyper_table(SMALL.hypers)


def fail(text):
    raise AssertionError(f"unexpected warning: {text}")


def written(run_dir: Path, folder: str) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run_dir / folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


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
        "throughput/episodes": 7,
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
        "hypers/gamma",
        "hypers/unroll",
        "pbt/generation",
        "shaping/life_lost",
        "throughput/episodes",
    ]
    assert not any("objective" in tag for tag in written(tmp_path, "population"))


def test_config_and_layout_are_in_the_population(tmp_path):
    write(tmp_path, view(member(0)), config_json='{"seed": 3}')
    events = EventAccumulator(str(tmp_path / "population"))
    events.Reload()
    assert {"config/text_summary", "custom_scalars__config__"} <= set(events.Tags()["tensors"])
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text == '```json\n{"seed": 3}\n```'


def hparams_of(folder, part):
    """What TensorBoard's HPARAMS tab reads there."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(folder))
    events.Reload()
    content = events.SummaryMetadata(f"_hparams_/{part}").plugin_data.content
    return getattr(HParamsPluginData.FromString(content), part)


def test_the_hparams_tab_has_the_values_that_members_began_with(tmp_path):
    write(tmp_path, view(member(0), member(1, learning_rate=1e-3)), view(member(0), member(1, gamma=0.5)))
    begun = hparams_of(tmp_path / "policy_01", "session_start_info").hparams
    assert {"hypers/learning_rate": 2.5e-4, "hypers/gamma": 0.99, "shaping/life_lost": -1.0}.items() <= {
        name: value.number_value for name, value in begun.items()
    }.items()
    named = hparams_of(tmp_path / "population", "experiment")
    assert next(info.name.tag for info in named.metric_infos) == "episodes/objective"
    assert {info.name for info in named.hparam_infos} == set(begun)
    assert hparams_of(tmp_path / "policy_00", "session_end_info").status == 1


def test_a_chart_shows_one_quantity_of_every_member_and_nothing_else():
    shown = view(member(0, shaping__life=1.0), member(1))
    policy_tags = set(member_scalars(shown.members[0]))
    population_tags = set(population_scalars(shown))
    charts = {title: chart for category in layout(shown).values() for title, chart in category.items()}
    drawn = set()
    for title, (kind, patterns) in charts.items():
        assert kind == "Multiline"
        [pattern] = patterns
        # TensorBoard uses `re.match` on the tags of one run after the other.
        of_policy = {tag for tag in policy_tags if re.match(pattern, tag)}
        of_population = {tag for tag in population_tags if re.match(pattern, tag)}
        assert bool(of_policy) != bool(of_population), title
        assert len(of_policy) <= 1, title
        drawn |= of_policy
    assert policy_tags - drawn == {"throughput/episodes"}


def test_points_grow_rarer_and_changes_are_always_written(tmp_path):
    hour = [
        view(member(0, float(s)), seconds=float(s), frames=s, replacements=int(s >= 3001))
        for s in range(1, 3601)
    ]
    write(tmp_path, *hour)
    points = dict(written(tmp_path, "population")["episodes/objective_best"])
    assert 500 < len(points) < 1000
    assert {1, 2, 3, 3001, 3600} <= set(points)


def test_an_unchanged_member_is_not_written_again(tmp_path):
    write(tmp_path, view(member(0)), view(member(0), seconds=20.0, frames=9000))
    assert len(written(tmp_path, "policy_00")["pbt/generation"]) == 1


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
    assert len(warnings) == 2
    assert "No space left" in warnings[0]
    assert warnings[1] == "TensorBoard files are written again"
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


def checkpoint(run_dir, *, until=20, beyond=30):
    """The state at `until`, as a checkpoint keeps it, of a run that was killed at `beyond`."""
    display = TensorBoard(RunFolder(run_dir), 2, config_json="{}", warn=fail)
    for second in range(1, until + 1):
        display.update(hour(second))
    state = json.loads(json.dumps(display.state()))
    for second in range(until + 1, beyond):
        display.update(hour(second))
    return state


def resume(run_dir, state, *, until=20, end=40):
    display = TensorBoard(RunFolder(run_dir), 2, config_json="{}", warn=fail, resumed=state)
    display.update(replace(hour(until), seconds=until + 0.9))  # no frame since the checkpoint
    for second in range(until + 1, end):
        display.update(hour(second))
    display.close()


def steps(run_dir, folder, tag):
    return [step for step, _ in written(run_dir, folder)[tag]]


def test_a_resumed_run_goes_on_in_the_same_files_with_every_step_once(tmp_path):
    state = checkpoint(tmp_path)
    files = set(tmp_path.rglob("events*"))
    resume(tmp_path, state)
    assert set(tmp_path.rglob("events*")) == files
    assert steps(tmp_path, "population", "episodes/objective_best") == [20 * s for s in range(1, 40)]
    for name in ("policy_00", "policy_01"):
        assert steps(tmp_path, name, "episodes/objective") == [10 * s for s in range(1, 40)]
    events = [e for path in tmp_path.glob("population/events*") for e in EventFileLoader(str(path)).Load()]
    tags = [value.tag for event in events for value in event.summary.value]
    assert tags.count("config/text_summary") == tags.count("custom_scalars__config__") == 1
    assert sum(bool(event.file_version) for event in events) == 1
    times = [event.wall_time for event in events]
    assert times == sorted(times)


def test_a_run_that_is_resumed_twice_from_one_checkpoint_has_every_step_once(tmp_path):
    state = checkpoint(tmp_path)
    resume(tmp_path, state, end=25)
    resume(tmp_path, state)
    assert steps(tmp_path, "population", "episodes/objective_best") == [20 * s for s in range(1, 40)]


def test_files_that_a_power_cut_shortened_are_continued_after_their_last_whole_record(tmp_path):
    state = checkpoint(tmp_path)
    [torn] = tmp_path.glob("policy_00/events*")
    os.truncate(torn, state["positions"][f"policy_00/{torn.name}"] - 20)
    [zeros] = tmp_path.glob("policy_01/events*")
    position = state["positions"][f"policy_01/{zeros.name}"]
    os.truncate(zeros, position - 2000)
    os.truncate(zeros, position)
    resume(tmp_path, state)
    assert steps(tmp_path, "policy_00", "episodes/objective") == [10 * s for s in range(1, 40) if s != 20]
    after = steps(tmp_path, "policy_01", "episodes/objective")
    assert after[0] == 10
    assert sorted(set(after)) == after
    assert set(after) >= {10 * s for s in range(21, 40)}
    assert len(after) < 39


def test_missing_files_are_begun_anew_and_later_ones_are_removed(tmp_path):
    state = checkpoint(tmp_path)
    for path in tmp_path.glob("policy_00/events*"):
        path.unlink()
    later = tmp_path / "policy_01" / "events.out.tfevents.9999999999.later.1"
    later.write_bytes(b"of a run that was resumed before")
    resume(tmp_path, state)
    assert not later.exists()
    assert steps(tmp_path, "policy_00", "episodes/objective") == [10 * s for s in range(21, 40)]
    assert steps(tmp_path, "policy_01", "episodes/objective") == [10 * s for s in range(1, 40)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"positions": None},
        {"positions": {"a": "b"}},
        {"positions": {"a": -1}},
        {"seconds": "x"},
        {"layout": 3},
        {"more": 1},
    ],
)
def test_a_mangled_state_is_one_clear_error(tmp_path, wrong):
    with pytest.raises(ValueError, match="state of TensorBoard cannot be read"):
        resume(tmp_path, checkpoint(tmp_path) | wrong)


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path):
    (tmp_path / "population").write_text("in the way")
    with pytest.raises(OSError, match="population"):
        TensorBoard(RunFolder(tmp_path), 1, config_json="{}", warn=fail)


def test_a_number_beyond_float32_is_no_error(tmp_path):
    write(tmp_path, view(member(0, 1e300)))
    assert written(tmp_path, "policy_00")["episodes/objective"][0][1] > 3e38


def images(run_dir):
    events = EventAccumulator(str(run_dir / "population"))
    events.Reload()
    return {
        tag: [(e.step, e.width, e.encoded_image_string[:4]) for e in events.Images(tag)]
        for tag in events.Tags()["images"]
    }


def test_figures_of_the_population_are_drawn_beside_the_run_and_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("pbt_rl.display.tensorboard.PATIENCE_SECONDS", 300.0)
    controller = build_controller(SMALL, TABLE, 0)
    journals.write(
        tmp_path,
        journals.simulated(controller, 4, 4, {"pbt": SMALL.pbt}, chunk_frames=1000, limit_frames=3000),
    )
    display = TensorBoard(RunFolder(tmp_path), 1, config_json="{}", warn=fail)
    display.update(view(member(0)))
    assert display.drawing.child is None, "no meta-epoch yet: nothing to draw"
    display.request_figures()
    display.update(view(member(0), seconds=20.0))
    assert display.drawing.child is not None, "drawn by a process of its own"
    display.request_figures()
    display.update(view(member(0), seconds=21.0, frames=9000))
    display.close()
    drawn = images(tmp_path)
    assert set(drawn) == {f"population/{name}" for name in ("objective", "forest", "schedules")}
    assert all(points[-1] == (9000, 900, b"\x89PNG") for points in drawn.values())
    assert written(tmp_path, "population")["episodes/objective_best"]


def test_a_drawing_that_fails_is_reported_once_and_the_numbers_go_on(tmp_path):
    (tmp_path / "journal.jsonl").write_text("no journal\n{}\n")
    warnings = []
    display = TensorBoard(RunFolder(tmp_path), 1, config_json="{}", warn=warnings.append)
    display.request_figures()
    display.update(view(member(0)))
    display.drawing.child.wait(time.monotonic() + 90)
    for frames in (9000, 10_000):
        display.request_figures()
        display.update(view(member(0, float(frames)), seconds=float(frames), frames=frames))
        assert display.drawing.child is None, "not again at once"
    display.close(patient=lambda: False)
    assert len(warnings) == 1
    assert "is not the folder of a run" in warnings[0]
    assert images(tmp_path) == {}
    assert dict(written(tmp_path, "population")["episodes/objective_best"])[10_000] == 10_000


class FakeChild:
    """A drawing that ends at once; it fails while `broken`."""

    broken, begun = True, 0

    def __init__(self, _module, _label, setup, _descriptors):
        FakeChild.begun += 1
        if FakeChild.broken is None:
            raise OSError(24, "Too many open files")
        if not FakeChild.broken:
            with os.fdopen(os.dup(setup.descriptor), "wb") as file:
                pickle.dump({"forest": b"\x89PNG" + bytes(20)}, file)

    def exit_code(self):
        return int(self.broken)

    def how_it_ended(self):
        return "no memory"

    def end(self, _patience):
        pass


@pytest.mark.parametrize("broken", [True, None], ids=["it fails", "it cannot be started"])
def test_a_drawing_that_failed_is_tried_again_ever_more_rarely(tmp_path, monkeypatch, broken):
    now, warnings = [1e6], []
    monkeypatch.setattr("pbt_rl.display.tensorboard.Child", FakeChild)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    FakeChild.broken, FakeChild.begun = broken, 0
    drawing = Drawing(tmp_path, warnings.append)

    def draw(seconds):
        images = {}
        for _ in range(0, seconds, 20):
            now[0] += 20
            drawing.request()
            images |= drawing.poll()
        return images

    assert draw(1000) == {}
    assert FakeChild.begun == 4, "after 0, 120, 360 and 840 seconds"
    draw(100_000)
    begun = FakeChild.begun
    assert draw(36_000) == {}
    assert FakeChild.begun - begun == 10, "once per hour"
    assert len(warnings) == 1
    FakeChild.broken = False
    assert list(draw(3700)) == ["forest"]
    begun = FakeChild.begun
    draw(600)
    assert FakeChild.begun - begun == 3, "ten times its 20 seconds, as before"


def test_without_matplotlib_one_line_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    warnings = []
    display = TensorBoard(RunFolder(tmp_path), 1, config_json="{}", warn=warnings.append)
    for _ in range(3):
        display.request_figures()
        display.update(view(member(0)))
    display.close()
    assert len(warnings) == 1
    assert 'pip install "pbt-rl[report]"' in warnings[0]


def test_no_figures_if_none_are_wanted(tmp_path):
    display = TensorBoard(RunFolder(tmp_path), 1, config_json="{}", warn=fail, figures=False)
    display.request_figures()
    display.update(view(member(0)))
    assert display.drawing.child is None
    display.close()
    assert images(tmp_path) == {}


def test_the_last_drawing_begins_anew_if_it_had_no_core(tmp_path, monkeypatch):
    """One of the lowest priority, begun beside training, may never be done where others work."""
    begun = []

    class Starved(FakeChild):
        def __init__(self, module, name, setup, fds):
            super().__init__(module, name, setup, fds)
            self._priority = setup.priority
            begun.append(setup.priority)

        def exit_code(self):
            return None if self._priority else super().exit_code()

    monkeypatch.setattr("pbt_rl.display.tensorboard.Child", Starved)
    monkeypatch.setattr("pbt_rl.display.tensorboard.HURRY_SECONDS", 0.1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    FakeChild.broken, warnings = False, []
    drawing = Drawing(tmp_path, warnings.append)
    drawing.request()
    assert drawing.poll() == {}
    assert list(drawing.finish()) == ["forest"]
    assert begun == [LOWEST, 0]
    assert not warnings


def test_a_file_of_weeks_is_continued_without_being_read_whole(tmp_path):
    name, image = "events.out.tfevents.1.host.1", b"x" * 300_000
    file = EventFile(tmp_path)
    for step in range(8):
        file.message(
            Summary(value=[Summary.Value(tag="a", image=Summary.Image(encoded_image_string=image))]), step
        )
    file.close()
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / name)
    whole = (tmp_path / name).stat().st_size
    tracemalloc.start()
    try:
        again = EventFile(tmp_path, {name: whole - 1})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    again.close()
    assert whole - 300_200 < again.position()[1] < whole - 300_000
    assert most < whole / 2
