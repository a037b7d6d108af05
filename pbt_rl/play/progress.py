"""Evaluations that take long: how far they are, and how many threads they use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import torch

EVERY_SECONDS, EVERY_SECONDS_IN_A_LOG = 1.0, 30.0


class Progress:
    """Shows how many episodes have ended: in a terminal in one line that is removed at the end, else now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._terminal = stream, stream.isatty()
        self._every = EVERY_SECONDS if self._terminal else EVERY_SECONDS_IN_A_LOG
        self._next = time.monotonic() + self._every
        self._open = False

    def show(self, ended: int, total: int) -> None:
        """Show it if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every
        self._open = self._terminal
        text = f"{ended} of {total} episodes have ended"
        self._stream.write(f"\r{text}\x1b[K" if self._terminal else f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread inside: for the few rows of an evaluation more of them wait for each other.

    OMP_NUM_THREADS, if it is set, is the user's choice.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
