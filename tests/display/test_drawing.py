"""Figures of the population in TensorBoard, as TensorBoard reads them."""

import os
import pickle
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pbt_rl.config import Config
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.display.drawing import LOWEST, Drawing
from pbt_rl.display.tensorboard import TensorBoard
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.resolved import build_controller
from tests.display.test_tensorboard import fail, written
from tests.helpers import journals
from tests.helpers.runs import HANG_SECONDS
from tests.helpers.views import member, view

SMALL = Config("toy/x", num_policies=4, pbt=PbtConfig(period_frames=1000, start_frames=0, min_episodes=1))
TABLE = hyper_table(SMALL.hypers)


def images(run_dir):
    events = EventAccumulator(str(run_dir / "population"))
    events.Reload()
    return {
        tag: [(e.step, e.width, e.encoded_image_string[:4]) for e in events.Images(tag)]
        for tag in events.Tags()["images"]
    }


def test_figures_of_the_population_are_drawn_beside_the_run_and_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("pbt_rl.display.drawing.TIMEOUT_SECONDS", 300.0)
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
    assert display.drawing.child.wait(time.monotonic() + HANG_SECONDS), "a drawing has the lowest priority"
    for frames in (9000, 10_000):
        display.request_figures()
        display.update(view(member(0, float(frames)), seconds=float(frames), frames=frames))
        assert display.drawing.child is None, "not again at once"
    display.close(may_wait=lambda: False)
    assert len(warnings) == 1
    assert "journal.jsonl, line" in warnings[0]
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
            with os.fdopen(os.dup(setup[2]), "wb") as file:
                pickle.dump({"forest": b"\x89PNG" + bytes(20)}, file)

    def exit_code(self):
        return int(self.broken)

    def how_it_ended(self):
        return "no memory"

    def end(self, _timeout):
        pass


@pytest.mark.parametrize("broken", [True, None], ids=["it fails", "it cannot be started"])
def test_a_drawing_that_failed_is_tried_again_ever_more_rarely(tmp_path, monkeypatch, broken):
    now, warnings = [1e6], []
    monkeypatch.setattr("pbt_rl.display.drawing.Child", FakeChild)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    FakeChild.broken, FakeChild.begun = broken, 0
    drawing = Drawing(tmp_path, ("objective",), warnings.append)

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
    assert "pbt-rl[report]" in warnings[0]


def test_the_last_drawing_begins_anew_if_it_had_no_core(tmp_path, monkeypatch):
    """One of the lowest priority, begun beside training, may never be done where others work."""
    begun = []

    class Delayed(FakeChild):
        def __init__(self, module, name, setup, fds):
            super().__init__(module, name, setup, fds)
            self._priority = setup[3]
            begun.append(setup[3])

        def exit_code(self):
            return None if self._priority else super().exit_code()

    monkeypatch.setattr("pbt_rl.display.drawing.Child", Delayed)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    FakeChild.broken, warnings = False, []
    drawing = Drawing(tmp_path, ("objective",), warnings.append)
    drawing.request()
    assert drawing.poll() == {}
    assert list(drawing.finish()) == ["forest"]
    assert begun == [LOWEST, 0]
    assert not warnings
