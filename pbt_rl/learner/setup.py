"""What a learner is told at its start, and how it begins again: the same process, a new interpreter, another setup.

After CUDA has refused a recording in the midst, a process can record nothing any more, whatever it does. A fresh one
can. Its parent notices nothing: process, connection and descriptors stay.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from pbt_rl.algos.pack import Packing
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.pbt.hypers import Values
from pbt_rl.plan import PackPlan
from pbt_rl.wire.messages import Load
from pbt_rl.wire.store import ArrayLayout


@dataclass(frozen=True)
class LearnerSetup:
    """The first message to a learner. Descriptors are inherited."""

    config: Config
    spec: EnvSpec
    plan: PackPlan
    seed: int
    slots: tuple[Load | None, ...]
    """What each slot holds at the start. Weights that do not lie in the pool are drawn."""
    unheld_values: Values
    """What a slot without a member is built with; nothing reads it."""
    mailbox_fds: tuple[int, ...]
    """One per unit, actor by actor."""
    wake_fds: tuple[int, ...]
    """One per unit: the eventfd of its actor."""
    ready_fd: int
    shaping_fd: int
    layout: ArrayLayout
    """Of a member's arrays, in the pool."""
    pool_fd: int
    heartbeat_fd: int
    continued: Mapping[str, Any] | None = None
    """What LearnerSaved said of this learner, to continue from."""
    without: tuple[Packing, ...] = ()
    """Packings whose recordings broke when this learner tried them."""

    @property
    def fds(self) -> list[int]:
        """Return all descriptors, for the process to inherit."""
        single = (self.ready_fd, self.shaping_fd, self.heartbeat_fd, self.pool_fd)
        return sorted({fd for fd in (*self.mailbox_fds, *self.wake_fds, *single) if fd >= 0})

    def with_descriptors(self, numbers: Mapping[int, int]) -> LearnerSetup:
        """Return the setup with other numbers for the descriptors: number there -> number here."""

        def here(fd: int) -> int:
            return numbers.get(fd, fd)

        return replace(
            self,
            mailbox_fds=tuple(map(here, self.mailbox_fds)),
            wake_fds=tuple(map(here, self.wake_fds)),
            ready_fd=here(self.ready_fd),
            shaping_fd=here(self.shaping_fd),
            heartbeat_fd=here(self.heartbeat_fd),
            pool_fd=here(self.pool_fd),
        )


@dataclass(frozen=True)
class BeginAgain:
    """The first message of such a learner."""

    setup: LearnerSetup
    connection_fd: int


def begin_again(setup: LearnerSetup, connection_fd: int) -> NoReturn:
    """Replace this process by one that finds the message where `begin_child` expects its connection."""
    message = os.memfd_create("learner", 0)
    said: Connection[Any, Any] = Connection(os.dup(message))
    said.send(BeginAgain(setup, connection_fd))
    said.close()
    os.lseek(message, 0, os.SEEK_SET)
    *command, _ = sys.orig_argv[1:]
    for fd in (connection_fd, message, *setup.fds):
        os.set_inheritable(fd, True)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command, str(message)])  # noqa: S606 - our own interpreter
