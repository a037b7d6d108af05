"""Checks of the machine's limits: open files and memory."""

from __future__ import annotations

import resource
from pathlib import Path

from pbt_rl.errors import ConfigError
from pbt_rl.plan import Plan
from pbt_rl.run.memory_check import check_memory
from pbt_rl.run.resolved import ResolvedRun

COMFORTABLE = 1 << 16
"""Upper limit of open files, because some programs loop over all numbers up to the limit."""
RESERVE = 64
"""Descriptors for short-lived files, libraries, and a GPU driver's devices."""
MAPPED = 2
"""Descriptors per mapped file, because Python's mmap duplicates its descriptor."""
SEGMENTS = 16
"""Maximum segments of the state pool, each twice as large as the one before."""
PER_CHILD = 3
"""Descriptors per process: socket, connection to the keeper, pidfd."""


def descriptors_needed(plan: Plan, members: int, agents: int) -> int:
    """Return the maximum number of files that the supervisor opens, in addition to those open now."""
    shared = 1 + SEGMENTS  # the pool of states
    record = members + 6  # TensorBoard files; journal, locks, a checkpoint
    per_pack = 2 + MAPPED * (1 + (agents > 1))  # shaping, eventfd; heartbeat, table of matchups
    vector_envs = sum(
        pack.actors * (1 + MAPPED * pack.vector_envs_per_actor) for pack in plan.packs
    )  # eventfds, mailboxes
    children = PER_CHILD * (sum(pack.actors for pack in plan.packs) + len(plan.packs))
    return shared + record + per_pack * len(plan.packs) + vector_envs + children + RESERVE


def allow_open_files(needed: int) -> None:
    """Raise the soft limit by at least `needed` files. Raises ConfigError if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(list(Path("/proc/self/fd").iterdir())) + needed
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise ConfigError(
            f"this run needs about {wanted} open files, but the limit is {hard} (ulimit -Hn): raise it, or use "
            "fewer policies, actors or vector envs (--num-policies, --actors, --vector-envs-per-actor)"
        )
    target = max(wanted, COMFORTABLE if hard == resource.RLIM_INFINITY else min(COMFORTABLE, hard))
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def check_start(resolved: ResolvedRun) -> None:
    """Raise the limit of open files, and check memory. Raises ConfigError if this machine is too small."""
    allow_open_files(descriptors_needed(resolved.plan, resolved.config.members, resolved.spec.agents))
    check_memory(resolved)
