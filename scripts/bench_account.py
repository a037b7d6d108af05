"""CPU account of a training run: use of the machine's cores. scripts/bench.py prints the account below its figures.

The account begins when all rows of the run have started and an update was made. For each thread of the run, the kernel
reports CPU time and time in the run queue (`/proc/PID/task/TID/schedstat`). The kernel reports the use of the cores in
`/proc/stat`. The number of steps is read from the run's mailboxes, which the learner keeps open. The measurement does
not affect the run.

    environment     actors and their child processes: game engines, access to mailboxes
    inference       the learner's main thread: acting, messages, reports
    learning        the other threads of the learner
    supervisor      the run's main process, keepers, writers of checkpoints
    others          processes outside the run
    idle            idle cores
    stolen          cores that the hypervisor gave to other guests

achieved / limit = (cores in the three stages / cores) * (cost of the stages alone / cost of the stages in the run). The
loss has two causes: some cores do not run a stage, and a stage costs more in a run than alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from pbt_rl.actors.mailbox import STEPS, Mailbox
from pbt_rl.envs.base import EnvSpec

STAGES = ("environment", "inference", "learning")
PARTS = (*STAGES, "supervisor")
MAILBOX = re.compile(r"/memfd:pbt_rl-mailbox-")
UPDATED = b"learning/policy_loss"
"""Tag that TensorBoard files of a run contain only after the first update."""
START_SECONDS = 300.0
TICKS = os.sysconf("SC_CLK_TCK")
MOST_OFF = 0.1
"""Tolerated difference between the total of the account and the cores, as a fraction of the cores."""


@dataclass
class Reading:
    """Cumulative counters at one time. Times are in seconds. The difference of two readings is the use in between."""

    at: float
    steps: int
    ran: dict[tuple[str, int], float]
    """(part of the account, thread id) -> CPU time."""
    waited: dict[tuple[str, int], float]
    """(part of the account, thread id) -> time in the run queue."""
    machine: float
    """CPU time of all processes of the machine."""
    idle: float
    stolen: float
    alive: frozenset[int]
    """Process ids of actors and learners."""


@dataclass
class Watch:
    """Observer of a run's processes.

    pid: id of the main process. vector_envs: number of mailboxes. rows: rows per mailbox.
    """

    pid: int
    spec: EnvSpec
    vector_envs: int
    rows: int
    folder: Path
    """Folder of the run."""
    steady: float = 0.0
    """Time when the run became steady, in seconds since the epoch. 0 before."""
    updated: float = 0.0
    """Time when the first update was detected, in seconds since the epoch. 0 before."""
    _boxes: list[Mailbox] = field(default_factory=list)
    _played: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    def follow(self, seconds: float, cores: int) -> dict[str, float]:
        """Wait until the run is steady. Return the account of the next `seconds`.

        A run is steady when all rows have started and an update was made.
        Raises RuntimeError if the run ends before it is steady, if it is not steady within START_SECONDS, or if the
        account is wrong.
        """
        end = time.monotonic() + START_SECONDS
        while not (self._all_played() and self.updated):
            if psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE:
                raise RuntimeError(f"the run ended before it was steady: {self._missing()}")
            if time.monotonic() > end:
                raise RuntimeError(f"the run was not steady after {START_SECONDS:.0f} s: {self._missing()}")
            files = () if self.updated else self.folder.glob("policy_00/events*")
            if any(UPDATED in file.read_bytes() for file in files):
                self.updated = time.time()
            time.sleep(0.2)
        self.steady, before = time.time(), self.read()
        time.sleep(seconds)
        return account(before, self.read(), cores)

    def _all_played(self) -> bool:
        if len(self._boxes) < self.vector_envs:
            processes = _tree(psutil.Process(self.pid))
            learners = [process.pid for process, role in processes if role == "learner"]
            self._boxes = [box for pid in learners for box in _mailboxes(pid, self.spec, self.rows)]
        for box in self._boxes:
            if box.header[STEPS]:  # a row that has not started delivers `first` in each step
                played_R = self._played.setdefault(id(box), np.zeros(self.rows, np.bool_))
                played_R |= ~box.step.first
        return len(self._played) >= self.vector_envs and all(
            played_R.all() for played_R in self._played.values()
        )

    def _missing(self) -> str:
        played = sum(int(played_R.sum()) for played_R in self._played.values())
        updates = "" if self.updated else "no update was made, "
        return f"{updates}{played} of its {self.vector_envs * self.rows} rows had been played"

    def read(self) -> Reading:
        """Read all counters of the run and of the machine."""
        ran, waited, alive = {}, {}, set()
        at, machine = time.monotonic(), _machine_seconds()
        steps = sum(int(box.header[STEPS]) for box in self._boxes)
        for process, role in _tree(psutil.Process(self.pid)):
            if role != "other":
                alive.add(process.pid)
            for thread, on_cpu, in_queue in _threads(process.pid):
                part = {"actor": "environment", "other": "supervisor"}.get(role) or (
                    "inference" if thread == process.pid else "learning"
                )
                ran[part, thread], waited[part, thread] = on_cpu, in_queue
        user, nice, system, idle, io, irq, soft, stolen = (machine + _machine_seconds()) / 2
        used = user + nice + system + irq + soft
        return Reading(at, steps, ran, waited, used, idle + io, stolen, frozenset(alive))


def _tree(process: psutil.Process, role: str = "other") -> Iterator[tuple[psutil.Process, str]]:
    """Yield (process, role) for a process and its descendants. role: "actor", "learner" or "other"."""
    yield process, role
    try:
        for child in process.children():  # descendants of an actor or a learner have its role
            yield from _tree(child, role_of(child.cmdline()) if role == "other" else role)
    except psutil.Error:  # just ended
        return


def role_of(command: Sequence[str]) -> str:
    """Return the role of a process from its command line: "actor", "learner" or "other".

    A keeper is "other", although its command line contains the command line of its child.
    """
    if any(Path(word).name == "keeper.py" for word in command):
        return "other"
    modules = {"pbt_rl.actors.actor": "actor", "pbt_rl.learner.learner": "learner"}
    return next((role for module, role in modules.items() if module in command), "other")


def _threads(pid: int) -> Iterator[tuple[int, float, float]]:
    """Yield (thread id, CPU seconds, seconds in the run queue) for each thread of a process."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            on_cpu, in_queue, _ = (task / "schedstat").read_text().split()
            yield int(task.name), int(on_cpu) / 1e9, int(in_queue) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return


def _machine_seconds() -> NDArray[np.float64]:
    """Return user, nice, system, idle, iowait, irq, softirq and steal seconds of the usable cores."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = [[int(x) for x in line[1:9]] for line in lines if line[0] in mine]
    seconds: NDArray[np.float64] = np.sum(ticks, axis=0) / TICKS
    return seconds


def _mailboxes(pid: int, spec: EnvSpec, rows: int) -> list[Mailbox]:
    """Map the mailboxes that a process keeps open."""
    found: dict[int, Mailbox] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # just closed
            if MAILBOX.match(str(link.readlink())):
                box = Mailbox(spec, rows, os.open(link, os.O_RDWR))
                found[os.fstat(box.fd).st_ino] = box
                box.close()  # the mapping stays
    return list(found.values())


def account(before: Reading, after: Reading, cores: int) -> dict[str, float]:
    """Return the number of cores that each part uses, and the CPU-microseconds per step of each stage.

    Raises RuntimeError if the parts do not add up to the cores of the machine, if a part is negative, if no step was
    taken, or if an actor or a learner began or ended.
    """
    if before.alive != after.alive:
        raise RuntimeError("an actor or a learner ended or began while the run was measured")
    seconds, steps = after.at - before.at, after.steps - before.steps
    if steps <= 0:
        raise RuntimeError(f"no step was taken in {seconds:.0f} s")
    ran, waited = _passed(before.ran, after.ran), _passed(before.waited, after.waited)
    total = {f"{part} cores": ran[part] / seconds for part in PARTS}
    others = (after.machine - before.machine - sum(ran.values())) / seconds
    total["others cores"] = max(
        0.0, others
    )  # may be negative, because tick counts are up to 6 % too low on some machines
    total["idle cores"] = (after.idle - before.idle) / seconds
    total["stolen cores"] = (after.stolen - before.stolen) / seconds
    negative = [f"{name} {used:.2f}" for name, used in total.items() if used < 0]
    if negative:
        raise RuntimeError(f"the account is wrong, a share is negative: {', '.join(negative)}")
    if abs(sum(total.values()) / cores - 1) > MOST_OFF:
        used = sum(total.values())
        raise RuntimeError(f"the account has {used:.2f} cores and the machine {cores}: {total}")
    waiting = {f"{part} waiting for a core": waited[part] / seconds for part in PARTS}
    costs = {f"{part} microseconds": ran[part] / steps * 1e6 for part in STAGES}
    return {"seconds": seconds, "steps": float(steps)} | total | waiting | costs


def _passed(
    before: Mapping[tuple[str, int], float], after: Mapping[tuple[str, int], float]
) -> dict[str, float]:
    """Return part -> seconds between two readings. Threads that have ended are left out."""
    passed = dict.fromkeys(PARTS, 0.0)
    for (part, thread), seconds in after.items():
        passed[part] += seconds - before.get((part, thread), 0.0)
    return passed


def lost(figures: Mapping[str, float], alone: Mapping[str, float], cores: int) -> dict[str, float]:
    """Return the reasons why a run is slower than the limit, as fractions.

    alone: stage -> CPU-microseconds per step, measured alone. Entries of the result:
    "idle", "supervisor, others, stolen": fractions of the cores.
    "dearer than alone": relative increase of the stages' costs in the run.
    "achieved by the account": (fraction of the cores in the stages) / (1 + "dearer than alone").
    """
    in_stages = sum(figures[f"{part} cores"] for part in STAGES) / cores
    dearer = sum(figures[f"{part} microseconds"] for part in STAGES) / sum(alone.values()) - 1
    elsewhere = sum(figures[f"{part} cores"] for part in ("supervisor", "others", "stolen"))
    return {
        "idle": figures["idle cores"] / cores,
        "supervisor, others, stolen": elsewhere / cores,
        "dearer than alone": dearer,
        "achieved by the account": in_stages / (1 + dearer),
    }


def table(
    figures: Mapping[str, float], alone: Mapping[str, float], beside: Mapping[str, float], cores: int
) -> list[str]:
    """Format the account. alone, beside: CPU-microseconds per step of each stage, measured alone and in parallel."""
    lines = [
        f"where {cores} cores went in {figures['seconds']:.0f} s, and CPU-microseconds per step:",
        f"{'':<14}{'cores':>7}{'share':>7}{'waiting':>9}{'in the run':>12}{'alone':>8}{'beside':>8}{'run/alone':>11}",
    ]
    for part in (*PARTS, "others", "idle", "stolen"):
        used = figures[f"{part} cores"]
        line = f"{part:<14}{used:>7.3f}{used / cores:>7.1%}"
        if part in PARTS:
            line += f"{figures[f'{part} waiting for a core']:>9.2f}"
        if part in alone:
            cost = figures[f"{part} microseconds"]
            line += f"{cost:>12.1f}{alone[part]:>8.1f}{beside[part]:>8.1f}{cost / alone[part]:>11.2f}"
        lines.append(line)
    shares = lost(figures, alone, cores)
    lines.append(
        f"of the limit: {shares['idle']:.1%} idle, {shares['supervisor, others, stolen']:.1%} supervisor, others and "
        f"stolen; cost of the stages {shares['dearer than alone']:+.1%} compared with alone "
        f"({sum(beside.values()) / sum(alone.values()) - 1:+.1%} in parallel without a run)"
    )
    return lines
