"""A child that starts before its setup is known: the start of a run waits for either, not for both."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from pbt_rl.actors.child import Child, ReceiveT, SendT

MOST_FDS = 200
"""Descriptors in one message; Linux takes 253."""


LEARNER = "pbt_rl.learner.learner"


def spare_learner(run: str) -> Waiting[Any, Any] | None:
    """Start a learner that loads torch and waits for its setup; None on one core, where it would gain nothing.

    run: what people know it by, in the list of processes.
    """
    return Waiting(LEARNER, f"{run}: learner 0") if len(os.sched_getaffinity(0)) > 1 else None


@dataclass(frozen=True)
class Begun:
    """The second message. fds: the parent's numbers of descriptors that follow it."""

    setup: Any
    fds: tuple[int, ...]


@dataclass(frozen=True)
class Later:
    """The first message: its setup is sent later, with descriptors by the numbers that they have here."""

    def finished(self, connection: Connection[Any, Any]) -> Any:
        """See `Unfinished`."""
        begun: Begun = connection.recv()
        here: list[int] = []
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            for part in _parts(begun.fds):
                here += socket.recv_fds(line, 1, len(part))[1]
        for fd in here:
            os.set_inheritable(fd, False)
        mapped = dict(zip(begun.fds, here, strict=True))
        return _renumbered(begun.setup, mapped)


class Waiting(Child[SendT, ReceiveT]):
    """A child that imports its module and waits for its setup, while its parent finds out what that is."""

    def __init__(self, module: str, run: str = "") -> None:
        super().__init__(module, module, Later(), (), run=run)

    def set_up(self, label: str, setup: object, fds: Sequence[int], log: Path | None) -> None:
        """Tell it what a `Child` is told at its start. The setup has descriptors in fields `..._fd` and `..._fds`."""
        self.label, self._log = label, log
        with contextlib.suppress(OSError):  # it has ended already: the sentinel shows it
            self._line.send(f"{label}\n{'' if log is None else log.absolute()}".encode())
            self.connection.send(cast("SendT", Begun(setup, tuple(fds))))
            with socket.socket(fileno=os.dup(self.connection.fileno())) as line:
                for part in _parts(fds):
                    socket.send_fds(line, [b"\0"], part)

    def discard(self) -> None:
        """End it, unless it has begun. Safe to call twice."""
        if self.label == self.module and self._line.fileno() >= 0:
            self.kill()
            self.end(0)


def _renumbered(setup: Any, numbers: Mapping[int, int]) -> Any:
    """Return a setup with other numbers for its descriptors: number there -> number here."""

    def here(fd: int) -> int:
        return numbers.get(fd, fd)

    names = [f.name for f in fields(setup)]
    single = {name: here(getattr(setup, name)) for name in names if name.endswith("_fd")}
    several = {name: tuple(map(here, getattr(setup, name))) for name in names if name.endswith("_fds")}
    return replace(setup, **single, **several)


def _parts(fds: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield as many descriptors as the kernel takes at once."""
    for at in range(0, len(fds), MOST_FDS):
        yield fds[at : at + MOST_FDS]
