"""Limits of the machine that a run needs to keep: open files and memory."""

from __future__ import annotations

import resource
from pathlib import Path

from pbt_rl.errors import ConfigError
from pbt_rl.plan import Plan
from pbt_rl.run.memory_check import check_memory
from pbt_rl.run.resolved import ResolvedRun

COMFORTABLE = 1 << 16
"""So many files may be open: some programs go through all numbers up to the limit."""
RESERVE = 64
"""For files that are opened for a moment, and what libraries open; in the learner of a GPU the driver's devices."""
MAPPED = 2
"""Python's mmap holds a descriptor of its own."""
SEGMENTS = 16
"""Of the pool of states: each is twice as large as the one before."""
PER_CHILD = 3
"""Socket, line to the keeper, pidfd."""


def descriptors_needed(plan: Plan, members: int, seats: int) -> int:
    """Return how many files the supervisor holds open at most, besides those that are open now."""
    shared = 1 + SEGMENTS  # the pool of states
    record = members + 6  # TensorBoard files; journal, locks, a checkpoint
    per_pack = 2 + MAPPED * (1 + (seats > 1))  # shaping, eventfd; heartbeat, table of matchups
    units = sum(
        pack.actors * (1 + MAPPED * pack.units_per_actor) for pack in plan.packs
    )  # eventfds, mailboxes
    children = PER_CHILD * (sum(pack.actors for pack in plan.packs) + len(plan.packs))
    return shared + record + per_pack * len(plan.packs) + units + children + RESERVE


def allow_open_files(needed: int) -> None:
    """Let `needed` more files be open, and more for comfort. Raises ConfigError if the hard limit forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(list(Path("/proc/self/fd").iterdir())) + needed
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise ConfigError(
            f"this run needs about {wanted} open files, and the limit is {hard} (ulimit -Hn): raise it, or use "
            "fewer policies, actors or units (--num-policies, --actors, --units-per-actor)"
        )
    target = max(wanted, COMFORTABLE if hard == resource.RLIM_INFINITY else min(COMFORTABLE, hard))
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def check_start(resolved: ResolvedRun) -> None:
    """Raise the limit of open files. Raises ConfigError if something keeps a run from starting on this machine."""
    allow_open_files(descriptors_needed(resolved.plan, resolved.config.members, resolved.spec.seats))
    check_memory(resolved)
