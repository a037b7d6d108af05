"""What a learner is told at its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pbt_rl.algos.pack import Packing
from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSpec
from pbt_rl.pbt.hypers import Values
from pbt_rl.plan import PackPlan
from pbt_rl.wire.snapshot import ArrayLayout, MemberSnapshot, SnapshotHeader, SnapshotMemory


@dataclass(frozen=True)
class LearnerSetup:
    """The first message to a learner. Descriptors are inherited."""

    config: Config
    spec: EnvSpec
    plan: PackPlan
    seed: int
    values: list[Values]
    """Of all members of this pack at the start, in order, and..."""
    generations: list[int]
    unheld_values: Values
    """What a slot without a member is built with; nothing reads it."""
    holders: tuple[int | None, ...]
    """Member of each slot at the start."""
    mailbox_fds: tuple[int, ...]
    """One per unit, actor by actor."""
    wake_fds: tuple[int, ...]
    """One per unit: the eventfd of its actor."""
    ready_fd: int
    shaping_fd: int
    layout: ArrayLayout
    """Of a member's arrays, in the memories of which the descriptors follow."""
    exchange_fd: int
    staging_fd: int
    staging_entries: int
    heartbeat_fd: int
    start_fd: int = -1
    """Members to start from, or -1: their arrays lie in this memory, entry by entry as the headers say."""
    start_headers: tuple[SnapshotHeader, ...] = ()
    elsewhere: tuple[int, ...] = ()
    """Members of other packs, which may be admitted later."""
    continued: Mapping[str, Any] | None = None
    """What SnapshotBegun said of this learner, to continue from."""
    without: tuple[Packing, ...] = ()
    """Packings whose recordings broke when this learner tried them."""

    @property
    def fds(self) -> list[int]:
        """Return all descriptors, for the process to inherit."""
        single = (self.ready_fd, self.shaping_fd, self.heartbeat_fd)
        members = (self.exchange_fd, self.staging_fd, self.start_fd)
        return sorted({fd for fd in (*self.mailbox_fds, *self.wake_fds, *single, *members) if fd >= 0})

    def start(self) -> Iterator[MemberSnapshot]:
        """Yield the members to start from."""
        if self.start_fd < 0:
            return
        memory = SnapshotMemory(self.start_fd, self.layout, len(self.start_headers))
        for entry, header in enumerate(self.start_headers):
            yield MemberSnapshot(header, memory.read(entry))
