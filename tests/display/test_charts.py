"""What stands in TensorBoard besides the numbers, as TensorBoard reads it."""

import os
import pickle
import re
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pbt_rl.config import Config
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.display.charts import LOWEST, Drawing, layout
from pbt_rl.display.scalars import member_scalars, population_scalars
from pbt_rl.display.tensorboard import TensorBoard
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.resolved import build_controller
from tests.display.test_tensorboard import fail, write, written
from tests.helpers import journals
from tests.helpers.views import INITIAL, member, view

SMALL = Config("toy/x", num_policies=4, pbt=PbtConfig(period_frames=1000, start_frames=0, min_episodes=1))
TABLE = hyper_table(SMALL.hypers)


def test_the_layout_is_in_the_population(tmp_path):
    write(tmp_path, view(member(0)))
    events = EventAccumulator(str(tmp_path / "population"))
    events.Reload()
    assert "custom_scalars__config__" in events.Tags()["tensors"]


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
    shown = view(member(0, shaping__life=1.0), member(1), tuned=frozenset({*INITIAL, "shaping.life"}))
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
    assert policy_tags - drawn == set()


def images(run_dir):
    events = EventAccumulator(str(run_dir / "population"))
    events.Reload()
    return {
        tag: [(e.step, e.width, e.encoded_image_string[:4]) for e in events.Images(tag)]
        for tag in events.Tags()["images"]
    }


def test_figures_of_the_population_are_drawn_beside_the_run_and_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("pbt_rl.display.charts.PATIENCE_SECONDS", 300.0)
    controller = build_controller(SMALL, TABLE, 0)
    journals.write(
        tmp_path,
        journals.simulated(controller, 4, 4, {"pbt": SMALL.pbt}, chunk_frames=1000, limit_frames=3000),
    )
    display = TensorBoard(RunFolder(tmp_path), 1, config_json="{}", warn=fail)
    display.update(view(member(0)))
    assert display.charts.drawing.child is None, "no meta-epoch yet: nothing to draw"
    display.request_figures()
    display.update(view(member(0), seconds=20.0))
    assert display.charts.drawing.child is not None, "drawn by a process of its own"
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
    display.charts.drawing.child.wait(time.monotonic() + 90)
    for frames in (9000, 10_000):
        display.request_figures()
        display.update(view(member(0, float(frames)), seconds=float(frames), frames=frames))
        assert display.charts.drawing.child is None, "not again at once"
    display.close(patient=lambda: False)
    assert len(warnings) == 1
    assert "is no JSON: restore the file" in warnings[0]
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
            with os.fdopen(os.dup(setup[1]), "wb") as file:
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
    monkeypatch.setattr("pbt_rl.display.charts.Child", FakeChild)
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


def test_the_last_drawing_begins_anew_if_it_had_no_core(tmp_path, monkeypatch):
    """One of the lowest priority, begun beside training, may never be done where others work."""
    begun = []

    class Starved(FakeChild):
        def __init__(self, module, name, setup, fds):
            super().__init__(module, name, setup, fds)
            self._priority = setup[2]
            begun.append(setup[2])

        def exit_code(self):
            return None if self._priority else super().exit_code()

    monkeypatch.setattr("pbt_rl.display.charts.Child", Starved)
    monkeypatch.setattr("pbt_rl.display.charts.HURRY_SECONDS", 0.1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    FakeChild.broken, warnings = False, []
    drawing = Drawing(tmp_path, warnings.append)
    drawing.request()
    assert drawing.poll() == {}
    assert list(drawing.finish()) == ["forest"]
    assert begun == [LOWEST, 0]
    assert not warnings
