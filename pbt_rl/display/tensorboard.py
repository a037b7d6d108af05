"""TensorBoard: one event file per member (`policy_00/`...) and one for the population (`population/`).

The event files are written here, at once and in the caller's thread. tensorboardX's own writer keeps two
threads and a bounded queue per file; on a full disk its thread dies, and then `add_scalar` blocks forever.
Only its messages and its checksum are used. The population's figures are drawn in a process of their own, so that the
run never waits for them.
"""

from __future__ import annotations

import importlib.util
import math
import os
import pickle
import re
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Never

from tensorboardX import summary as _summary
from tensorboardX.proto.summary_pb2 import Summary as _Summary

from pbt_rl.display import scalars
from pbt_rl.display.events import EventFile
from pbt_rl.display.scalars import (
    CPU_SHARE,
    evaluation_scalars,
    gap_seconds,
    member_scalars,
    population_scalars,
    value_tag,
)
from pbt_rl.display.view import EPISODE_STATS, MATCHUP_STATS, Evaluation, MemberView, RunView, run_statistics
from pbt_rl.extras import offered
from pbt_rl.pbt.hypers import SHAPING
from pbt_rl.procs.child import Child
from pbt_rl.record.append import Outage, reason
from pbt_rl.record.folder import RunFolder

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


@dataclass(frozen=True)
class DrawingSetup:
    """The only message to the process that draws.

    descriptor: of the file for the images. priority: raises the niceness.
    """

    run: Path
    descriptor: int
    priority: int


class Drawing:
    """Draws the figures of one run as PNG files, by name.

    loop      consumes   the run's journal, as it is when a drawing begins
              produces   images, returned by `poll`
              waits for  nothing; `finish` waits for the last drawing

    A drawing that fails, for want of memory or disk perhaps, is reported to `warn`; others are tried later, ever more
    rarely, until one succeeds. Training goes on. An extra declares the module that draws, as `FIGURES`; without it, or
    without matplotlib, nothing is drawn.
    """

    def __init__(self, run: Path, warn: Callable[[str], None]) -> None:
        self._run, self._warn = run, warn
        self._module: str | None = next(iter(offered("pbt_rl", "FIGURES")), None)
        self.child: Child[Never, Never] | None = None
        self._file: IO[bytes] | None = None
        self._requested = self._given_up = False
        self._failures = 0
        """Since the last drawing that succeeded."""
        self._began = 0.0
        self._next = 0.0

    def request(self) -> None:
        """Ask for a drawing of the present journal, as soon as the pause allows it."""
        if not self._given_up and (self._module is None or importlib.util.find_spec("matplotlib") is None):
            self._given_up = True
            need = "an extra that draws them" if self._module is None else f"matplotlib ({INSTALL})"
            self._warn(f"no figures reach TensorBoard: they need {need}")
        self._requested = not self._given_up

    def poll(self) -> dict[str, bytes]:
        """Return images that have become ready; begin the next drawing if one is due."""
        ready = self._collect()
        if self._requested and self.child is None and time.monotonic() >= self._next:
            self._begin(priority=LOWEST)
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
                self._begin(priority=0)  # nothing trains any more
            time.sleep(0.02)
        if self.child is not None:
            self.child.end(0.0)
            self._release()
            if patient():
                self._warn(f"the last figures for TensorBoard were not drawn within {PATIENCE_SECONDS:.0f} s")
        return ready

    def _begin(self, priority: int) -> None:
        self._requested = False
        self._began = time.monotonic()
        try:
            self._file = os.fdopen(os.memfd_create("pbt_rl-figures"), "w+b")
            number = self._file.fileno()
            setup = DrawingSetup(self._run, number, priority)
            assert self._module is not None
            self.child = Child(self._module, "the drawing", setup, [number])
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


class TensorBoard:
    """Writes views to TensorBoard. Use it from one thread.

    The gap between two written views grows with the run (`gap_seconds`). A view in which a member changed is always
    written, so the steps of a schedule stand where they happened.

    A process of its own draws the figures of the population, at most once per minute and at the end; none with
    `figures=False`.

    What cannot be written (a full disk) is tried again every ten seconds, with the newest view: the curves have a gap
    then. `warn` is called when that begins and when it ends, and training goes on.
    """

    def __init__(
        self,
        run: RunFolder,
        num_members: int,
        *,
        config_json: str,
        warn: Callable[[str], None],
        figures: bool = True,
        resumed: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the folders and files, or go on with those of a checkpoint.

        resumed: what `state` returned at the checkpoint. The files are cut there, so that no point stands twice.

        Raises OSError, as a run that cannot be written should not start; ValueError if `resumed` is no such state.
        """
        state = _State() if resumed is None else _State.from_json(resumed)
        positions = None if resumed is None else state.positions

        def opened(folder: Path) -> EventFile:
            here = f"{folder.name}/"
            files = positions and {
                n.removeprefix(here): p for n, p in positions.items() if n.startswith(here)
            }
            return EventFile(folder, files, state.steps.get(folder.name, -1))

        self._folders = [run.population_events, *(run.member_events(member) for member in range(num_members))]
        self._population, *self._members = map(opened, self._folders)
        if not self._population.continued:
            self._population.message(_summary.text("config", f"```json\n{config_json}\n```"))
        self._unnamed = {
            number
            for number, file in enumerate((self._population, *self._members), start=-1)
            if not file.continued
        }
        """Members whose file lacks the values that they began with; -1: the population's lacks their names."""
        self._layout_written = state.layout and self._population.continued
        self._written_members: list[MemberView | None] = [None] * num_members
        self._written_seconds = state.seconds
        self._written_changes = state.changes
        self._written_population: RunView | None = None
        self._unwritten: RunView | None = None
        self._images: dict[str, bytes] = {}
        self._evaluations: list[tuple[Evaluation, bytes]] = []
        """Those that are not written yet, each with its clip."""
        self._last: RunView | None = None
        self._outage = Outage("TensorBoard files", warn)
        self.drawing = Drawing(run.path, warn)
        self._figures = figures

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON types: the position in every file (its name is relative to the run's
        folder), and what was written last.
        """
        files = list(zip(self._folders, (self._population, *self._members), strict=True))
        state = _State(
            positions=dict(file.position() for _, file in files),
            steps={folder.name: file.last_step for folder, file in files},
            seconds=self._written_seconds,
            changes=self._written_changes,
            layout=self._layout_written,
        )
        return asdict(state)

    def request_figures(self) -> None:
        """Have the population's figures drawn soon. Call it once the journal holds the round of a comparison."""
        if self._figures:
            self.drawing.request()

    def evaluated(self, evaluation: Evaluation, clip: bytes) -> None:
        """Write an evaluation at the frames at which it was made. clip: GIF of its first episode; empty without one."""
        self._evaluations.append((evaluation, clip))
        self._try()

    def update(self, view: RunView) -> None:
        """Receive a view; write it if the gap has passed or a member has changed."""
        self._unwritten = self._last = view
        self._images.update(self.drawing.poll())
        if (
            self._changed(view)
            or self._images
            or view.seconds >= self._written_seconds + gap_seconds(view.seconds)
        ):
            self._try()

    def close(self, patient: Callable[[], bool] = lambda: True) -> None:
        """Write the last view if that has not happened, wait for the last figures while `patient`, close all files."""
        self._try(last=True)  # before the figures, which take seconds
        self._images.update(self.drawing.finish(patient))
        if self._images:
            self._try(last=True)
        for file in (self._population, *self._members):
            file.close()

    def _changed(self, view: RunView) -> bool:
        return view.replacements + view.mutations != self._written_changes

    def _try(self, *, last: bool = False) -> None:
        if not (last or self._outage.due()):
            return
        try:
            self._write_waiting(last=last)
        except OSError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()

    def _write_waiting(self, *, last: bool) -> None:
        while self._evaluations:
            evaluation, clip = self._evaluations[0]
            values = [
                _Summary.Value(tag=tag, simple_value=value)
                for tag, value in evaluation_scalars(evaluation).items()
                if math.isfinite(value)
            ]
            if clip:
                width, height = struct.unpack("<HH", clip[6:10])  # of the GIF header
                values.append(_image("evaluation/game", clip, width, height))
            self._population.message(_Summary(value=values), evaluation.all_frames)
            del self._evaluations[0]
        if self._unwritten is not None:
            self._write(self._unwritten)
            self._unwritten = None
        if last and self._last is not None:
            self._write_layout(self._last)
            for member, file in zip(self._last.members, self._members, strict=True):
                file.message(scalars.end(member))
        values = [
            _image(f"population/{name}", image, *struct.unpack(">II", image[16:24]))  # of the PNG header
            for name, image in self._images.items()
        ]
        if values and self._last is not None:
            self._population.message(_Summary(value=values), self._last.frames)
            self._images.clear()

    def _write_start_values(self, members: Sequence[MemberView]) -> None:
        if -1 in self._unnamed:
            self._population.message(scalars.experiment(members[0]))
            self._unnamed.remove(-1)
        for number in sorted(self._unnamed):
            self._members[number].message(scalars.begin(members[number]))
            self._unnamed.remove(number)

    def _write(self, view: RunView) -> None:
        self._write_start_values(view.members)
        if _learning_names(view):
            self._write_layout(view)
        news = view.frames > self._population.last_step or self._changed(view)
        # The view itself was written before if a member's file could not be written after it.
        if news and view is not self._written_population:
            self._population.scalars(population_scalars(view), view.frames)
            self._written_population, self._written_seconds = view, view.seconds
        for member, file in zip(view.members, self._members, strict=True):
            if member != self._written_members[member.member]:
                file.scalars(member_scalars(member), member.frames)
                self._written_members[member.member] = member
        self._written_changes = view.replacements + view.mutations

    def _write_layout(self, view: RunView) -> None:
        """Write the layout once: TensorBoard reads only the first one of a file.

        That is when the first learning statistics have come, so that their charts need no list of names; for a run
        without any, at its end.
        """
        if not self._layout_written:
            self._population.message(_summary.custom_scalars(layout(view)))
            self._layout_written = True


@dataclass(frozen=True)
class _State:
    """What a checkpoint keeps of a TensorBoard."""

    positions: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    changes: int = -1
    layout: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> _State:
        """Raises ValueError if the data are not those of `asdict`."""
        wanted: dict[str, Callable[[Any], bool]] = {
            "positions": lambda v: _maps_to(v, int) and all(p >= 0 for p in v.values()),
            "steps": lambda v: _maps_to(v, int),
            "seconds": lambda v: isinstance(v, int | float),
            "changes": lambda v: isinstance(v, int),
            "layout": lambda v: isinstance(v, bool),
        }
        wrong = [name for name, test in wanted.items() if not test(data.get(name))]
        if wrong or data.keys() != wanted.keys():
            raise ValueError(
                f"the state of TensorBoard cannot be read: {', '.join(wrong) or 'unknown fields'}"
            )
        return cls(**data)


def _maps_to(value: object, kind: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, kind) for item in value.values())


def _image(tag: str, image: bytes, width: int, height: int) -> Any:
    shown = _Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=image)
    return _Summary.Value(tag=tag, image=shown)


def layout(view: RunView) -> dict[str, dict[str, list[Any]]]:
    """Return the custom-scalars layout: category -> chart -> [kind, tag patterns].

    TensorBoard matches the patterns (from the tag's beginning) in every selected run and draws one line per
    match, so the anchored tag of one quantity gives one line per member.
    """

    def members(tag: str) -> list[Any]:
        return ["Multiline", [f"^{re.escape(tag)}$"]]

    values = sorted({name for member in view.members for name in member.values})
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
        "Episodes": {name: members(f"episodes/{name}") for name in EPISODE_STATS},
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
                if view.replayed
                else {}
            ),
        },
    }


def _learning_names(view: RunView) -> list[str]:
    """Return all learning statistics of the members, in the order in which the learner reports them."""
    return list(dict.fromkeys(name for member in view.members for name in member.learning_stats))
