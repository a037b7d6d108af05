"""Processes of a DeepMind Lab vector env: one per row.

A Lab is an instance of the engine. Each Lab has a separate process, because the engine uses a whole core, compiles maps
for seconds within a call, and may crash its process. Rows step in parallel, and a row that compiles a map does not
delay other rows.

The engine writes maps to a temporary folder in TMPDIR, and removes the folder only when the engine is closed. Labs must
not share this folder, because maps of different Labs have equal names. Therefore TMPDIR is a scratch folder of the row.
The row's keeper (`pbt_rl.processes.keeper`) removes the scratch folder after the row's process and its map compilers
have ended.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pbt_rl.processes.child import Program, python_module

from ..base import cpu_ns_of
from .row import ROW_BYTES, RowSetup, receive, send

SILENCE_SECONDS = 300.0
"""Timeout of a row's answer to a request. The longest measured reset took 20 s on an idle core."""
CLOSE_SECONDS = 2.0
SCRATCH_PREFIX = "pbt_rl_dmlab_"


class LabError(Exception):
    """Failure of a request to the engine.

    refused: True if the engine rejected the request. False if the engine crashed or hangs.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass
class Row:
    """Handle of the process of one Lab (instance of the engine). The process handles one request at a time.

    line: socket to the process.
    asked_at: time of the last request, in `time.monotonic` seconds.
    """

    program: Program
    line: socket.socket
    asked_at: float = 0.0

    def __post_init__(self) -> None:
        self._poll = select.poll()
        self._poll.register(self.line, select.POLLIN)

    def ask(self, *request: Any) -> None:
        """Send a request: its name and arguments (see row.py). Call `answer` before the next request."""
        self.asked_at = time.monotonic()
        with contextlib.suppress(ConnectionError):  # `answer` reports it
            send(self.line, request)

    @property
    def answered(self) -> bool:
        """True if an answer has arrived or the process has ended."""
        return bool(self._poll.poll(0))

    @property
    def late(self) -> bool:
        """True after the timeout of the answer. `answer` then raises LabError unless the answer has arrived."""
        return time.monotonic() >= self.asked_at + SILENCE_SECONDS

    @property
    def lost(self) -> bool:
        """True if the process has ended or hangs."""
        return self.late or self.program.exit_code() is not None

    def answer(self) -> Any:
        """Wait for the answer, and return the result of the request.

        Raises LabError if the request fails, or if the process ends or hangs.
        """
        left = self.asked_at + SILENCE_SECONDS - time.monotonic()
        try:
            if not self._poll.poll(max(0.0, left * 1000)):
                self.program.kill()
                hangs = f"the engine hangs: no answer for {SILENCE_SECONDS:.0f} s"
                raise LabError(f"{hangs}. Therefore {self.program.how_it_ended()}")
            kind, content = receive(self.line)
        except (EOFError, ConnectionError):
            raise LabError(self.program.how_it_ended()) from None
        if kind == "failed":
            raise LabError(content, refused=True)
        return content

    def last_words(self) -> str:
        """Kill the process. Return the end of its output."""
        self.program.kill()
        return self.program.last_words()[0]


class Labs:
    """Processes of R rows, each with an instance of DeepMind Lab.

    setups: one per row. This class sets the fields `memory_fd` and `row` of each setup.
    memory: shared memory with the observations of all rows (see `row_arrays` in row.py).
    """

    def __init__(self, setups: Sequence[RowSetup]) -> None:
        self.rows: list[Row] = []
        self._closed = False
        memory_fd = os.memfd_create("pbt_rl-dmlab", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memory_fd, ROW_BYTES * len(setups))
            self.memory = mmap.mmap(memory_fd, 0)
            for number, setup in enumerate(setups):
                self.rows.append(self._start(replace(setup, memory_fd=memory_fd, row=number)))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(memory_fd)
        self._pids = [row.program.pid for row in self.rows]

    def _start(self, setup: RowSetup) -> Row:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        try:
            with theirs:
                program = Program(
                    python_module(f"{__package__}.row", str(theirs.fileno()), "-1"),
                    "the engine's process",
                    [theirs.fileno(), setup.memory_fd],
                    dict.fromkeys(("TMPDIR", "TEST_TMPDIR"), str(scratch)),
                    scratch=scratch,
                )
        except OSError:
            ours.close()
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        row = Row(program, ours)
        send(row.line, setup)
        return row

    def wait(self, rows: Sequence[int]) -> None:
        """Wait until one of these rows has answered or ended, or until the oldest request is SILENCE_SECONDS old.

        rows: indices of rows.
        """
        oldest = min(self.rows[row].asked_at for row in rows)
        left = oldest + SILENCE_SECONDS - time.monotonic()
        poll = select.poll()
        for row in rows:
            poll.register(self.rows[row].line, select.POLLIN)
        poll.poll(max(0.0, left * 1000))

    def cpu_ns(self) -> int:
        """Return the total CPU time of the rows' processes in nanoseconds. A dead process counts as 0."""
        return cpu_ns_of(self._pids)

    def close(self) -> None:
        """End every process. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for row in self.rows:
            row.ask("close")
        deadline = time.monotonic() + CLOSE_SECONDS
        for row in self.rows:
            row.program.end(max(0.0, deadline - time.monotonic()))
            row.line.close()
