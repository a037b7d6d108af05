"""What a learner is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pbt_rl.actors.messages import Load
from pbt_rl.actors.store import ArrayLayout
from pbt_rl.algos.pack import Packing
from pbt_rl.config import Config
from pbt_rl.controllers.hypers import Values
from pbt_rl.envs.base import EnvSpec
from pbt_rl.run.plan import PackPlan


@dataclass(frozen=True)
class LearnerSetup:
    """The first message to a learner. Descriptors, in the fields `..._fd` and `..._fds`, are inherited."""

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
    """Packings that broke when this learner tried them."""
    connection_fd: int = -1
    """The connection to go on with, if the process has begun again."""

    @property
    def fds(self) -> list[int]:
        """Return all descriptors, for the process to inherit."""
        single = (self.ready_fd, self.shaping_fd, self.heartbeat_fd, self.pool_fd)
        return sorted({fd for fd in (*self.mailbox_fds, *self.wake_fds, *single) if fd >= 0})
