"""TensorBoard: one event file per member (`policy_00/`...) and one for the population (`population/`).

The event files are written here, at once and in the caller's thread. tensorboardX's own writer keeps two
threads and a bounded queue per file; on a full disk its thread dies, and then `add_scalar` blocks forever.
Only its messages and its checksum are used.
"""

from __future__ import annotations

import math
import os
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from tensorboardX import summary as _summary
from tensorboardX.proto.event_pb2 import Event as _Event
from tensorboardX.proto.summary_pb2 import Summary as _Summary
from tensorboardX.record_writer import masked_crc32c as _checksum

from pbt_rl.display.drawing import Drawing
from pbt_rl.display.ranking import WAITING, busy_shares, known_objective, standing
from pbt_rl.display.view import (
    EPISODE_STATS,
    EXTRA,
    MATCHUP_STATS,
    MemberView,
    RunView,
    run_statistics,
)
from pbt_rl.pbt.hypers import SHAPING
from pbt_rl.record.folder import RunFolder

Scalars = dict[str, float]

_MAX_GAP_SECONDS = 60.0


class EventFile:
    """One TensorBoard event file: records of length, checksum, message, checksum. Nothing is buffered."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file: IO[bytes] = (folder / name).open("wb", buffering=0)
        self._write(_Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Write all finite values as one record. Raises OSError."""
        values = [
            _Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars.items()
            if math.isfinite(value)
        ]
        if values:
            self.message(_Summary(value=values), step)

    def message(self, summary: Any, step: int = 0) -> None:
        """Write one summary message. Raises OSError."""
        self._write(_Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Any) -> None:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        record = length + struct.pack("<I", _checksum(length)) + data + struct.pack("<I", _checksum(data))
        written = self._file.write(record)
        if written != len(record):
            raise OSError(f"only {written} of {len(record)} bytes of a record were written")


class TensorBoard:
    """Writes views to TensorBoard. Use it from one thread.

    The gap between two written views grows with the run (0.5 % of its time, at most a minute), so a day of training
    makes one or two megabytes per member. A view in which a member changed is always written, so the steps of a
    schedule stand where they happened.

    A process of its own draws the figures of the population, at most once per minute and at the end; none with
    `figures=False`.

    After a write error nothing more is written. `warn` is called once, and training goes on.
    """

    def __init__(
        self,
        run: RunFolder,
        num_members: int,
        *,
        config_json: str,
        warn: Callable[[str], None],
        figures: bool = True,
    ) -> None:
        """Create the folders and files. Raises OSError, as a run that cannot be written should not start."""
        self._warn = warn
        self._population = EventFile(run.population_events)
        self._members = [EventFile(run.member_events(member)) for member in range(num_members)]
        self._population.message(_summary.text("config", f"```json\n{config_json}\n```"))
        self._layout_written = self._failed = False
        self._stage_seconds: Counter[str] = Counter()
        self._written_members: list[MemberView | None] = [None] * num_members
        self._written_seconds = 0.0
        self._written_changes = -1
        self._unwritten: RunView | None = None
        self._last: RunView | None = None
        self._drawing = Drawing(run.path, warn)
        self._figures = figures

    def request_figures(self) -> None:
        """Have the population's figures drawn soon. Call it once the journal holds the round of a comparison."""
        if self._figures:
            self._drawing.request()

    def update(self, view: RunView) -> None:
        """Receive a view; write it if the gap has passed or a member has changed."""
        self._stage_seconds.update(view.stage_seconds)
        self._unwritten = self._last = view
        gap = min(view.seconds / 200, _MAX_GAP_SECONDS)
        changed = view.replacements + view.mutations != self._written_changes
        if changed or view.seconds >= self._written_seconds + gap:
            self._write_unless_failed()
        self._write_images(self._drawing.poll())

    def close(self, patient: Callable[[], bool] = lambda: True) -> None:
        """Write the last view if that has not happened, wait for the last figures while `patient`, close all files."""
        self._write_unless_failed()
        last = self._last
        if last is not None:
            self._unless_failed(lambda: self._write_layout(last))
        self._write_images(self._drawing.finish(patient))
        for file in (self._population, *self._members):
            file.close()

    def _write_unless_failed(self) -> None:
        if self._unwritten is not None:
            view = self._unwritten
            self._unwritten = None
            self._unless_failed(lambda: self._write(view))

    def _write_images(self, images: Mapping[str, bytes]) -> None:
        values = [
            _Summary.Value(
                tag=f"population/{name}",
                image=_Summary.Image(width=w, height=h, colorspace=4, encoded_image_string=image),
            )
            for name, image in images.items()
            for w, h in (struct.unpack(">II", image[16:24]),)  # of the PNG header
        ]
        if values:
            frames = 0 if self._last is None else self._last.frames
            self._unless_failed(lambda: self._population.message(_Summary(value=values), frames))

    def _unless_failed(self, write: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            write()
        except OSError as error:
            self._failed = True
            self._warn(f"TensorBoard files are no longer written ({error}); training goes on")

    def _write(self, view: RunView) -> None:
        if _learning_names(view):
            self._write_layout(view)
        elapsed_seconds = view.seconds - self._written_seconds
        self._population.scalars(population_scalars(view, self._stage_seconds, elapsed_seconds), view.frames)
        for member, file in zip(view.members, self._members, strict=True):
            if member != self._written_members[member.member]:
                file.scalars(member_scalars(member), member.frames)
                self._written_members[member.member] = member
        self._stage_seconds.clear()
        self._written_seconds = view.seconds
        self._written_changes = view.replacements + view.mutations

    def _write_layout(self, view: RunView) -> None:
        """Write the layout once: TensorBoard reads only the first one of a file.

        That is when the first learning statistics have come, so that their charts need no list of names; for a run
        without any, at its end.
        """
        if not self._layout_written:
            self._layout_written = True
            self._population.message(_summary.custom_scalars(layout(view)))


def member_scalars(member: MemberView) -> Scalars:
    """Return tag -> value of one member; unknown values are absent."""
    scalars: Scalars = {"pbt/generation": member.generation, "episodes/finished": member.episodes}
    objective = known_objective(member)
    if objective is not None:
        scalars["episodes/objective"] = objective
    for group, names in (("episodes", EPISODE_STATS), ("matchup", MATCHUP_STATS)):
        scalars |= {f"{group}/{name}": member.stats[name] for name in names if name in member.stats}
    scalars |= {f"learning/{name}": value for name, value in member.learning_stats.items()}
    scalars |= {name: value for name, value in member.stats.items() if name.startswith(EXTRA)}
    for name, task in member.tasks.items():
        if task is not None:
            scalars |= {f"tasks/{name}": task.objective, f"task_returns/{name}": task.raw_return}
    return scalars | {_value_tag(name): value for name, value in member.values.items()}


def population_scalars(view: RunView, stage_seconds: Mapping[str, float], elapsed_seconds: float) -> Scalars:
    """Return tag -> value of the population. stage_seconds: busy thread-seconds during `elapsed_seconds`."""
    scalars: Scalars = {shown.tag: value for shown, value in run_statistics(view).values() if shown.tag}
    if elapsed_seconds > 0 and WAITING in stage_seconds:
        scalars["throughput/waiting_threads"] = stage_seconds[WAITING] / elapsed_seconds
    for stage, share in busy_shares(stage_seconds).items():
        scalars[f"cpu_share/{stage}"] = share
    statuses = Counter(member.status for member in view.members)
    if set(statuses) != {""}:
        scalars |= {f"pbt/{status}": statuses[status] for status in ("parked", "stopped")}
    objectives = standing(view.members)
    if objectives is not None:
        scalars["objective/best"] = objectives.best
        scalars["objective/mean"] = objectives.mean
        scalars["objective/spread"] = objectives.spread
    return scalars


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
    tasks = [name for member in view.members[:1] for name in member.tasks]
    by_task = {"Tasks": {name: members(f"tasks/{name}") for name in tasks}} if tasks else {}
    return {
        **matchup,
        "Objective": {
            "objective of every member": members("episodes/objective"),
            "population: best, mean": ["Multiline", ["^objective/(best|mean)$"]],
            "population: spread": members("objective/spread"),
        },
        **by_task,
        "Episodes": {name: members(f"episodes/{name}") for name in EPISODE_STATS},
        "Learning": {name: members(f"learning/{name}") for name in learning},
        "Hyperparameters": {n: members(_value_tag(n)) for n in values if not n.startswith(SHAPING)},
        "Reward shaping": {
            n.removeprefix(SHAPING): members(_value_tag(n)) for n in values if n.startswith(SHAPING)
        },
        "Population": {
            **{chart: ["Multiline", [f"^({'|'.join(tags)})$"]] for chart, tags in charts.items()},
            "generation of every member": members("pbt/generation"),
            "CPU share by stage": ["Multiline", ["^cpu_share/"]],
        },
    }


def _learning_names(view: RunView) -> list[str]:
    """Return all learning statistics of the members, in the order in which the learner reports them."""
    return list(dict.fromkeys(name for member in view.members for name in member.learning_stats))


def _value_tag(name: str) -> str:
    return f"shaping/{name.removeprefix(SHAPING)}" if name.startswith(SHAPING) else f"hypers/{name}"
