"""TensorBoard: one event file a policy (`policy_00/`...), one for the population (`population/`).

The event files are written here, at once and in the caller's thread. tensorboardX's own writer keeps two
threads and a bounded queue a file; on a full disk its thread dies, and then `add_scalar` blocks for ever. Of
tensorboardX only the messages and the checksum are used.
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
from pbt_rl.display.view import EXTRA, MemberView, RunView
from pbt_rl.pbt.hypers import SHAPING

Scalars = dict[str, float]

EPISODE_STATS = ("raw_return", "shaped_return", "length_steps")
MATCHUP_STATS = ("elo", "win_rate")
LEARNING_STATS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "kl",
    "clip_fraction",
    "explained_variance",
    "grad_norm",
    "learning_rate_in_use",
    "lag",
)
_MAX_GAP_SECONDS = 60.0


class EventFile:
    """One TensorBoard event file: records of length, checksum, message, checksum; nothing is buffered."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file: IO[bytes] = (folder / name).open("wb", buffering=0)
        self._write(_Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Write all that is finite, as one record. Raises OSError."""
        values = [
            _Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars.items()
            if math.isfinite(value)
        ]
        if values:
            self.message(_Summary(value=values), step)

    def message(self, summary: Any, step: int = 0) -> None:
        """Write a summary message. Raises OSError."""
        self._write(_Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Close the file; nothing is buffered."""
        self._file.close()

    def _write(self, event: Any) -> None:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        record = length + struct.pack("<I", _checksum(length)) + data + struct.pack("<I", _checksum(data))
        written = self._file.write(record)
        if written != len(record):
            raise OSError(f"only {written} of {len(record)} bytes of a record were written")


class TensorBoard:
    """Writes views to TensorBoard. Not for use from several threads.

    The gap between two written views grows with the run (half a percent of its time, at most a minute): a
    day of training is a megabyte or two a member. A view in which a member changed is always written, so the
    steps of a schedule stand where they happened.

    Figures of the population (`population_images`) come from a process of their own, at most once a minute and at
    the end; none are drawn without `figures`.

    After a write error nothing more is written; `warn` is told once, and training goes on.
    """

    def __init__(
        self,
        run_dir: Path,
        num_members: int,
        *,
        config_json: str,
        warn: Callable[[str], None],
        figures: bool = True,
    ) -> None:
        """Create the folders and files. Raises OSError: a run that cannot be written should not start."""
        self._warn = warn
        self._population = EventFile(run_dir / "population")
        self._members = [EventFile(run_dir / f"policy_{member:02d}") for member in range(num_members)]
        self._population.message(_summary.text("config", f"```json\n{config_json}\n```"))
        self._layout_written = self._failed = False
        self._stage_seconds: Counter[str] = Counter()
        self._written_members: list[MemberView | None] = [None] * num_members
        self._written_seconds = 0.0
        self._written_changes = -1
        self._unwritten: RunView | None = None
        self._drawing = Drawing(run_dir, warn)
        self._figures = figures
        self._frames = 0

    def population_images(self) -> None:
        """A meta-epoch has ended, and the journal says so: have the population's figures drawn when it is time to."""
        if self._figures:
            self._drawing.want()

    def update(self, view: RunView) -> None:
        """Take a view; write it if it is time to."""
        self._stage_seconds.update(view.stage_seconds)
        self._unwritten = view
        gap = min(view.seconds / 200, _MAX_GAP_SECONDS)
        changed = view.replacements + view.mutations != self._written_changes
        if changed or view.seconds >= self._written_seconds + gap:
            self._write_unless_failed()
        self._frames = view.frames
        self._write_images(self._drawing.poll())

    def close(self, patient: Callable[[], bool] = lambda: True) -> None:
        """Write the last view if it was not yet, wait for the last figures while `patient`, close all files."""
        self._write_unless_failed()
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
            self._unless_failed(lambda: self._population.message(_Summary(value=values), self._frames))

    def _unless_failed(self, write: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            write()
        except OSError as error:
            self._failed = True
            self._warn(f"TensorBoard files are no longer written ({error}); training goes on")

    def _write(self, view: RunView) -> None:
        if not self._layout_written:
            self._layout_written = True
            self._population.message(_summary.custom_scalars(layout(view)))
        elapsed_seconds = view.seconds - self._written_seconds
        self._population.scalars(population_scalars(view, self._stage_seconds, elapsed_seconds), view.frames)
        for member, file in zip(view.members, self._members, strict=True):
            if member != self._written_members[member.member]:
                file.scalars(member_scalars(member), member.frames)
                self._written_members[member.member] = member
        self._stage_seconds.clear()
        self._written_seconds = view.seconds
        self._written_changes = view.replacements + view.mutations


def member_scalars(member: MemberView) -> Scalars:
    """Tag -> value of one member; what is unknown is absent."""
    scalars: Scalars = {"pbt/generation": member.generation, "episodes/finished": member.episodes}
    objective = known_objective(member)
    if objective is not None:
        scalars["episodes/objective"] = objective
    groups = (("episodes", EPISODE_STATS), ("matchup", MATCHUP_STATS), ("learning", LEARNING_STATS))
    for group, names in groups:
        scalars |= {f"{group}/{name}": member.stats[name] for name in names if name in member.stats}
    scalars |= {name: value for name, value in member.stats.items() if name.startswith(EXTRA)}
    for name, task in member.tasks.items():
        if task is not None:
            scalars |= {f"tasks/{name}": task.objective, f"task_returns/{name}": task.raw_return}
    return scalars | {_value_tag(name): value for name, value in member.values.items()}


def population_scalars(view: RunView, stage_seconds: Mapping[str, float], elapsed_seconds: float) -> Scalars:
    """Tag -> value of the population. stage_seconds: busy thread-seconds during `elapsed_seconds`."""
    scalars: Scalars = {
        "throughput/frames_per_second": view.frames_per_second,
        "throughput/actors_restarted": view.actors_restarted,
        "throughput/discarded_rollouts": view.discarded_rollouts,
        "throughput/lag_mean": view.lag_mean,
        "throughput/lag_max": view.lag_max,
        "pbt/replacements": view.replacements,
        "pbt/mutations": view.mutations,
    }
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
    """Custom-scalars layout: category -> chart -> [kind, tag patterns].

    TensorBoard matches the patterns (from the tag's beginning) in every selected run and draws a line for
    each match; so the anchored tag of one quantity gives one line a member.
    """

    def members(tag: str) -> list[Any]:
        return ["Multiline", [f"^{re.escape(tag)}$"]]

    values = sorted({name for member in view.members for name in member.values})
    met = {"Matchup": {name: members(f"matchup/{name}") for name in MATCHUP_STATS}} if view.seats > 1 else {}
    tasks = [name for member in view.members[:1] for name in member.tasks]
    by_task = {"Tasks": {name: members(f"tasks/{name}") for name in tasks}} if tasks else {}
    return {
        **met,
        "Objective": {
            "objective of every member": members("episodes/objective"),
            "population: best, mean": ["Multiline", ["^objective/(best|mean)$"]],
            "population: spread": members("objective/spread"),
        },
        **by_task,
        "Episodes": {name: members(f"episodes/{name}") for name in EPISODE_STATS},
        "Learning": {name: members(f"learning/{name}") for name in LEARNING_STATS},
        "Hyperparameters": {n: members(_value_tag(n)) for n in values if not n.startswith(SHAPING)},
        "Reward shaping": {
            n.removeprefix(SHAPING): members(_value_tag(n)) for n in values if n.startswith(SHAPING)
        },
        "Population": {
            "replacements, mutations": ["Multiline", ["^pbt/(replacements|mutations)$"]],
            "generation of every member": members("pbt/generation"),
            "frames_per_second": members("throughput/frames_per_second"),
            "CPU share by stage": ["Multiline", ["^cpu_share/"]],
            "policy lag: mean, max": ["Multiline", ["^throughput/lag_(mean|max)$"]],
            "discarded rollouts, restarted actors": [
                "Multiline",
                ["^throughput/(discarded_rollouts|actors_restarted)$"],
            ],
        },
    }


def _value_tag(name: str) -> str:
    return f"shaping/{name.removeprefix(SHAPING)}" if name.startswith(SHAPING) else f"hypers/{name}"
