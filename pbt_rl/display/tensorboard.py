"""TensorBoard: an event file for each member (`policy_00/`...) and an event file for the population (`population/`).

This module writes the event files itself, synchronously in the caller's thread. tensorboardX's writer uses two threads
and a bounded queue per file. If the disk is full, one of these threads dies, and `add_scalar` blocks forever. This
module therefore imports only message classes, functions that make messages, and the checksum function of tensorboardX.

A resumed run starts new event files. Their START event contains the step at which the run resumes. From this step on,
TensorBoard ignores older files.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorboardX import summary as _summary
from tensorboardX.proto.event_pb2 import Event as _Event
from tensorboardX.proto.event_pb2 import SessionLog as _SessionLog
from tensorboardX.proto.summary_pb2 import Summary as _Summary
from tensorboardX.record_writer import masked_crc32c as _checksum

from pbt_rl.display.drawing import Drawing
from pbt_rl.display.scalars import (
    curves_of_values,
    evaluation_scalars,
    gap_seconds,
    member_scalars,
    population_scalars,
)
from pbt_rl.display.view import Evaluation, MemberView, RunView
from pbt_rl.record.append import AppendFile, Outage
from pbt_rl.record.folder import RunFolder

HEAD_BYTES, CHECK_BYTES = 12, 4
"""Bytes of a record before its message, and after its message."""
MOST_RECORDS = 400
FIGURES = ("objective", "evaluations", "forest", "schedules")
"""Figures of the HTML report that TensorBoard shows, too."""


class EventFile:
    """New event file, written without a buffer. A record consists of length, checksum, message, checksum."""

    def __init__(self, folder: Path, last_step: int | None = None) -> None:
        """last_step: step of the checkpoint from which the run was resumed. None: the run was not resumed.

        Raises OSError if the file cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.last_step = -1 if last_step is None else last_step
        """Step of the last written scalars. Initially the step of the checkpoint, or -1."""
        self._least_step = self.last_step + 1
        # TensorBoard sorts the files of a folder by name; wandb parses seconds and host from the name.
        seconds, rest = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds}.{socket.gethostname()}.{rest:09d}.{os.getpid()}"
        self._file = AppendFile(folder / name, 0)
        self._write(_Event(wall_time=time.time(), file_version="brain.Event:2"))
        if last_step is not None:
            again = _SessionLog(status=_SessionLog.START)
            self._write(_Event(wall_time=time.time(), step=last_step + 1, session_log=again))

    def scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Write all finite values as one record. Raises OSError if writing fails.

        In a resumed run, values at steps up to the checkpoint are not written.
        """
        values = [
            _Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars.items()
            if math.isfinite(value)
        ]
        if values and step >= self._least_step:
            self.message([_Summary(value=values)], step)
            self.last_step = step

    def message(self, summaries: Sequence[Any], step: int = 0) -> None:
        """Write several summary messages as one record. Raises OSError if writing fails."""
        values = [value for one in summaries for value in one.value]
        self._write(_Event(wall_time=time.time(), step=step, summary=_Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: Any) -> None:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = (struct.pack("<I", _checksum(part)) for part in (length, data))
        self._file.append(b"".join((length, next(checks), data, next(checks))))


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return tag -> list of (step, value) from the event files in a folder.

    From a file with 2 * `MOST_RECORDS` records or more, only some evenly spaced records are returned. A file is read up
    to the first record that cannot be decoded. If a resumed run repeated steps, the values of these steps are from the
    later file.
    """
    events: list[Any] = []
    for path in sorted(path for path in folder.glob("events.out.tfevents.*") if path.is_file()):
        with suppress(DecodeError, OSError):
            records = _records(path.read_bytes())
            every = max(1, len(records) // MOST_RECORDS)
            for number, data in enumerate(records):
                if number < 2 or number % every == 0 or number == len(records) - 1:
                    event = _Event.FromString(data)
                    if event.session_log.status == _SessionLog.START:
                        events = [earlier for earlier in events if earlier.step < event.step]
                    events.append(event)
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        for one in event.summary.value:
            if one.HasField("simple_value"):
                found.setdefault(one.tag, []).append((event.step, one.simple_value))
    return found


def _records(data: bytes) -> list[bytes]:
    """Return the messages of the complete records. data: content of an event file."""
    records, at = [], 0
    while at + HEAD_BYTES <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + HEAD_BYTES + length
        if end + CHECK_BYTES > len(data):
            break
        records.append(data[at + HEAD_BYTES : end])
        at = end + CHECK_BYTES
    return records


class TensorBoard:
    """Writer of views to TensorBoard event files. Call all methods from the same thread.

    The interval between two written views grows with the duration of the run (`gap_seconds`). The first view after a
    replacement or mutation is written without this interval, so that curves of values are exact.

    After an OSError (such as a full disk), the writer retries with the latest view every ten seconds until writing
    succeeds. `warn` is called when the outage begins and when it ends. Training continues, and the curves have a gap.
    """

    def __init__(
        self,
        run: RunFolder,
        num_members: int,
        *,
        config_json: str,
        warn: Callable[[str], None],
        figures: bool = True,
        resumed: Sequence[int] | None = None,
    ) -> None:
        """Create the folders and files. Raises OSError if this fails.

        resumed: frames of the population, followed by the frames of each member, at the checkpoint of a resumed run.
        """
        folders = [run.population_events, *(run.member_events(member) for member in range(num_members))]
        self._population, *self._members = (
            EventFile(folder, None if resumed is None else resumed[i]) for i, folder in enumerate(folders)
        )
        self._population.message([_summary.text("config", f"```json\n{config_json}\n```")])
        self._written_members: list[MemberView | None] = [None] * num_members
        self._written_seconds = 0.0
        self._written_changes = -1
        self._written_population: RunView | None = None
        self._unwritten: RunView | None = None
        self._last: RunView | None = None
        self._outage = Outage("TensorBoard files", warn)
        self.drawing = Drawing(run.path, FIGURES, warn)
        self._figures = figures
        self._images: dict[str, bytes] = {}
        """Name -> PNG file of figures that are not yet written."""
        self._evaluations: list[tuple[Evaluation, bytes]] = []
        """Evaluations that are not yet written, each with its GIF, which can be empty."""

    def request_figures(self) -> None:
        """Request a drawing of the figures. Call this when the journal contains a new comparison."""
        if self._figures:
            self.drawing.request()

    def evaluated(self, evaluation: Evaluation, clip: bytes) -> None:
        """Write an evaluation during training. clip: bytes of a GIF of the first episode, or b""."""
        self._evaluations.append((evaluation, clip))
        self._try(self._write_waiting)

    def update(self, view: RunView) -> None:
        """Write a view if the interval has passed, after a replacement or mutation, or with new figures."""
        self._unwritten = self._last = view
        self._images |= _drawn(self.drawing.poll())
        due = view.seconds >= self._written_seconds + gap_seconds(view.seconds)
        if self._images or due or self._changed(view):
            self._try(self._write_waiting)

    def close(self, may_wait: Callable[[], bool] = lambda: True) -> None:
        """Write the last view, wait for the last figures while `may_wait` returns True, and close all files."""
        self._try(self._write_waiting, last=True)  # before the figures, which take seconds
        self._images |= _drawn(self.drawing.finish(may_wait))
        self._try(self._write_waiting, last=True)
        for file in (self._population, *self._members):
            file.close()

    def _changed(self, view: RunView) -> bool:
        return view.replacements + view.mutations != self._written_changes

    def _try(self, write: Callable[[], None], *, last: bool = False) -> None:
        if not (last or self._outage.due()):
            return
        try:
            write()
        except OSError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()

    def _write_waiting(self) -> None:
        if self._unwritten is not None:
            self._write(self._unwritten)
            self._unwritten = None
        while self._evaluations:
            self._write_evaluation(*self._evaluations[0])
            del self._evaluations[0]
        if self._images and self._last is not None:
            images = [
                _image(f"population/{name}", data, *struct.unpack(">II", data[16:24]))  # of the PNG header
                for name, data in self._images.items()
            ]
            self._population.message(images, self._last.frames)
            self._images.clear()

    def _write_evaluation(self, evaluation: Evaluation, clip: bytes) -> None:
        """Write an evaluation. The step is the frames of all members at the evaluated checkpoint.

        Raises OSError if writing fails.
        """
        values = [
            _Summary(value=[_Summary.Value(tag=tag, simple_value=value)])
            for tag, value in evaluation_scalars(evaluation).items()
            if math.isfinite(value)
        ]
        if clip:
            width, height = struct.unpack("<HH", clip[6:10])  # size in the GIF header
            values.append(_image("evaluation/game", clip, width, height))
        self._population.message(values, evaluation.all_frames)

    def _write(self, view: RunView) -> None:
        news = view.frames > self._population.last_step or self._changed(view)
        # If writing a member's file failed in an earlier attempt, the population's file already contains this view.
        if news and view is not self._written_population:
            self._population.scalars(population_scalars(view), view.frames)
            self._written_population, self._written_seconds = view, view.seconds
        shown = curves_of_values(view)
        for member, file in zip(view.members, self._members, strict=True):
            if member != self._written_members[member.member]:
                file.scalars(member_scalars(member, shown), member.frames)
                self._written_members[member.member] = member
        self._written_changes = view.replacements + view.mutations


def _drawn(images: Mapping[str, bytes | str]) -> dict[str, bytes]:
    return {name: one for name, one in images.items() if isinstance(one, bytes)}


def _image(tag: str, data: bytes, width: int, height: int) -> Any:
    """Return the summary message of an image. data: content of the image file. width, height: in pixels."""
    shown = _Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=data)
    return _Summary(value=[_Summary.Value(tag=tag, image=shown)])
