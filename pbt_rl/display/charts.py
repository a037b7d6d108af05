"""What stands in TensorBoard besides the numbers: charts by subject, the table of start values, games, figures.

A process of its own draws the figures, so that a run never waits for them.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboardX import summary as _summary
from tensorboardX.proto.summary_pb2 import Summary as _Summary

from pbt_rl.controllers.hypers import SHAPING
from pbt_rl.display.scalars import CPU_SHARE, curves_of_values, evaluation_scalars, value_tag
from pbt_rl.display.view import EPISODE_STATS, MATCHUP_STATS, Evaluation, MemberView, RunView, run_statistics

if TYPE_CHECKING:
    from pbt_rl.display.tensorboard import EventFile
import importlib.util
import os
import pickle
import time
from typing import IO, Never

from pbt_rl.actors.child import Child
from pbt_rl.record.append import reason

METRICS = ("episodes/objective", "episodes/raw_return", "pbt/generation")
"""Tags of the results; the table of start values may be sorted by them."""


class Charts:
    """Charts of one run, for `TensorBoard`. What was written is not written again.

    A process of its own draws the figures of the population, at most once per minute and at the end.
    """

    def __init__(self, run: Path, warn: Callable[[str], None], figures: bool) -> None:
        self.drawing = Drawing(run, warn)
        self._figures = figures
        self._images: dict[str, bytes] = {}
        self._evaluations: list[tuple[Evaluation, bytes]] = []
        """Those that are not written yet, each with its clip."""
        self._begun: set[int] = set()
        """Members whose file has the values that they began with; -1: the population's has their names."""
        self._layout_written = False

    def request(self) -> None:
        """Have the figures drawn soon: the journal holds the round of a comparison."""
        if self._figures:
            self.drawing.request()

    def evaluated(self, evaluation: Evaluation, clip: bytes) -> None:
        """Keep an evaluation, to be written at the frames at which it was made."""
        self._evaluations.append((evaluation, clip))

    def poll(self) -> bool:
        """Take figures that have become ready; return whether there are any to write."""
        self._images.update(self.drawing.poll())
        return bool(self._images)

    def finish(self, patient: Callable[[], bool]) -> None:
        """Wait for the last figures while `patient`."""
        self._images.update(self.drawing.finish(patient))

    def write(self, view: RunView, population: EventFile, members: Sequence[EventFile]) -> None:
        """Write what is not written yet. Raises OSError."""
        shown = curves_of_values(view)
        names = start_values(view.members[0], shown)[0]
        if -1 not in self._begun:
            population.message([names])
            self._begun.add(-1)
        for member, file in zip(view.members, members, strict=True):
            if member.member not in self._begun:
                file.message([start_values(member, shown)[1]])
                self._begun.add(member.member)
        if _learning_names(view):
            self._write_layout(view, population)
        while self._evaluations:
            self._write_evaluation(*self._evaluations[0], population)
            del self._evaluations[0]
        images = [
            _image(f"population/{name}", data, *struct.unpack(">II", data[16:24]))  # of the PNG header
            for name, data in self._images.items()
        ]
        if images:
            population.message(images, view.frames)
            self._images.clear()

    def _write_evaluation(self, evaluation: Evaluation, clip: bytes, population: EventFile) -> None:
        values = [
            _Summary(value=[_Summary.Value(tag=tag, simple_value=value)])
            for tag, value in evaluation_scalars(evaluation).items()
            if math.isfinite(value)
        ]
        if clip:
            width, height = struct.unpack("<HH", clip[6:10])  # of the GIF header
            values.append(_image("evaluation/game", clip, width, height))
        population.message(values, evaluation.all_frames)

    def end(self, view: RunView, population: EventFile, members: Sequence[EventFile]) -> None:
        """Write that the run has ended. Raises OSError."""
        self._write_layout(view, population)
        for member, file in zip(view.members, members, strict=True):
            file.message([start_values(member, curves_of_values(view))[2]])

    def _write_layout(self, view: RunView, population: EventFile) -> None:
        """Write the layout once: TensorBoard reads only the first one of a file.

        That is when the first learning statistics have come, so that their charts need no list of names; for a run
        without any, at its end.
        """
        if not self._layout_written:
            population.message([_summary.custom_scalars(layout(view))])
            self._layout_written = True


def _image(tag: str, data: bytes, width: int, height: int) -> Any:
    """Return the summary of an image file."""
    shown = _Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=data)
    return _Summary(value=[_Summary.Value(tag=tag, image=shown)])


def start_values(member: MemberView, shown: Collection[str]) -> tuple[Any, Any, Any]:
    """Return three messages: the names of values and results, of any member, for the file of the population; for the
    member's own file the values that it began with, and that the run has ended. shown: names of values in the table.

    TensorBoard's HPARAMS tab is a table with a line per member. It knows one set of values per run and keeps the first
    that it reads: of a search, its configurations. How values change later is in the curves `hypers/` and `shaping/`.
    """
    values = {value_tag(name): value for name, value in member.initial.items() if name in shown}
    experiment, begin, end = _summary.hparams(values, dict.fromkeys(METRICS, 0.0))
    return experiment, begin, end


def layout(view: RunView) -> dict[str, dict[str, list[Any]]]:
    """Return the custom-scalars layout: category -> chart -> [kind, tag patterns].

    TensorBoard matches the patterns (from the tag's beginning) in every selected run and draws one line per
    match, so the anchored tag of one quantity gives one line per member.
    """

    def members(tag: str) -> list[Any]:
        return ["Multiline", [f"^{re.escape(tag)}$"]]

    values = sorted(curves_of_values(view))
    learning = _learning_names(view)
    charts: dict[str, list[str]] = {}
    for name, (shown, _) in run_statistics(view).items():
        if shown.tag:
            charts.setdefault(shown.chart or name, []).append(re.escape(shown.tag))
    matchup = (
        {"Matchup": {name: members(f"matchup/{name}") for name in MATCHUP_STATS}} if view.seats > 1 else {}
    )
    control = (
        {
            "population and control group: best, mean": [
                "Multiline",
                ["^(episodes|control)/objective_(best|mean)$"],
            ],
            "objective of every control": members("control/objective"),
        }
        if any(member.control for member in view.members)
        else {}
    )
    tasks = [name for member in view.members[:1] for name in member.tasks]
    by_task = {"Tasks": {name: members(f"tasks/{name}") for name in tasks}} if tasks else {}
    return {
        **matchup,
        "Objective": {
            "objective of every member": members("episodes/objective"),
            "population: best, mean; games beside training": [
                "Multiline",
                ["^(episodes/objective_(best|mean)|evaluation/objective)$"],
            ],
            "population: spread": members("episodes/objective_spread"),
            **control,
        },
        **by_task,
        "Episodes": {
            name: members(f"episodes/{name}") for name in (*EPISODE_STATS, "ended", "environments_ended")
        },
        "Learning": {name: members(f"learning/{name}") for name in learning},
        "Hyperparameters": {n: members(value_tag(n)) for n in values if not n.startswith(SHAPING)},
        "Reward shaping": {
            n.removeprefix(SHAPING): members(value_tag(n)) for n in values if n.startswith(SHAPING)
        },
        "Population": {
            **{chart: ["Multiline", [f"^({'|'.join(tags)})$"]] for chart, tags in charts.items()},
            "generation of every member": members("pbt/generation"),
            "CPU share by stage": ["Multiline", [f"^{CPU_SHARE}"]],
            **(
                {"replayed on GPUs": ["Multiline", ["^throughput/replayed_(turns|steps)$"]]}
                if view.accelerated
                else {}
            ),
        },
    }


def _learning_names(view: RunView) -> list[str]:
    """Return all learning statistics of the members, in the order in which the learner reports them."""
    return list(dict.fromkeys(name for member in view.members for name in member.learning_stats))


MIN_GAP_SECONDS = 60.0
GAP_FACTOR = 10.0
"""The pause before the next drawing is at least this multiple of the last one's duration."""
MAX_GAP_SECONDS = 3600.0
"""The pause doubles with every failure, up to this."""
LIMIT_SECONDS = 300.0
PATIENCE_SECONDS = 20.0
"""The end of a run waits at most this long for the last drawing."""
HURRY_SECONDS = 5.0
"""And this long for one of the lowest priority, which may get no core where others work; then it begins anew."""
LOWEST = 19
"""Priority of a drawing beside training (`nice`)."""
INSTALL = 'pip install "pbt-rl[report]"'


class Drawing:
    """Draws the figures of one run as PNG files, by name.

    loop      consumes   the run's journal, as it is when a drawing begins
              produces   images, returned by `poll`
              waits for  nothing; `finish` waits for the last drawing

    A drawing that fails, for want of memory or disk perhaps, is reported to `warn`; others are tried later, ever more
    rarely, until one succeeds. Training goes on. `report.images` draws, a child whose setup is (folder of the run,
    descriptor of the file for the images, what to add to its niceness). Without matplotlib nothing is drawn.
    """

    def __init__(self, run: Path, warn: Callable[[str], None]) -> None:
        self._run, self._warn = run, warn
        self.child: Child[Never, Never] | None = None
        self._file: IO[bytes] | None = None
        self._requested = self._given_up = False
        self._failures = 0
        """Since the last drawing that succeeded."""
        self._began = 0.0
        self._next = 0.0

    def request(self) -> None:
        """Ask for a drawing of the present journal, as soon as the pause allows it."""
        if not self._given_up and importlib.util.find_spec("matplotlib") is None:
            self._given_up = True
            self._warn(f"no figures reach TensorBoard: they need matplotlib ({INSTALL})")
        self._requested = not self._given_up

    def poll(self) -> dict[str, bytes]:
        """Return images that have become ready; begin the next drawing if one is due."""
        ready = self._collect()
        if self._requested and self.child is None and time.monotonic() >= self._next:
            self._start_process(priority=LOWEST)
        return ready

    def finish(self, patient: Callable[[], bool] = lambda: True) -> dict[str, bytes]:
        """Wait for the last drawing while `patient`, end its process, and return the images."""
        began, slow = time.monotonic(), self.child
        ready: dict[str, bytes] = {}
        while (self.child is not None or self._requested) and patient():
            waited = time.monotonic() - began
            if waited > PATIENCE_SECONDS:
                break
            ready = self._collect() or ready
            if slow is not None and self.child is slow and waited > HURRY_SECONDS:
                slow.end(0.0)
                self._release()
                self._requested = True
            if self._requested and self.child is None:
                self._start_process(priority=0)  # nothing trains any more
            time.sleep(0.02)
        if self.child is not None:
            self.child.end(0.0)
            self._release()
            if patient():
                self._warn(f"the last figures for TensorBoard were not drawn within {PATIENCE_SECONDS:.0f} s")
        return ready

    def _start_process(self, priority: int) -> None:
        self._requested = False
        self._began = time.monotonic()
        try:
            self._file = os.fdopen(os.memfd_create("pbt_rl-figures"), "w+b")
            number = self._file.fileno()
            self.child = Child("pbt_rl.report.images", "the drawing", (self._run, number, priority), [number])
        except OSError as error:
            self._release()
            self._failed(reason(error))

    def _collect(self) -> dict[str, bytes]:
        if self.child is None or self._file is None:
            return {}
        seconds = time.monotonic() - self._began
        code = self.child.exit_code()
        if code is None and seconds < LIMIT_SECONDS:
            return {}
        images: dict[str, bytes] = {}
        if code == 0:
            self._file.seek(0, os.SEEK_SET)
            images = pickle.load(self._file)
            self._failures = 0
            self._next = self._began + max(MIN_GAP_SECONDS, GAP_FACTOR * seconds)
        else:
            self._failed(f"it took over {LIMIT_SECONDS:.0f} s" if code is None else self.child.how_it_ended())
        self.child.end(0.0)
        self._release()
        return images

    def _release(self) -> None:
        self.child = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _failed(self, why: str) -> None:
        self._failures += 1
        pause = MIN_GAP_SECONDS * 2.0 ** min(self._failures, 10)
        self._next = time.monotonic() + min(pause, MAX_GAP_SECONDS)
        if self._failures == 1:
            self._warn(f"figures could not be drawn for TensorBoard ({why}); training goes on")
