"""Where the cores of a machine went while a run trained: the account that scripts/bench.py prints under its figures.

Over a window of the run, once all rows are there and an update was made, the kernel is asked what each thread of the
run's processes used and how long it waited for a core although it had work (`/proc/PID/task/TID/schedstat`), and what
the cores did (`/proc/stat`). Steps are read from the mailboxes of the run, which the learner holds open. So nothing of
the run is changed or slowed by it.

    environment     actors and what they start: engines, and the mailboxes
    inference       the learner's main thread: acting, messages, reports
    learning        the other threads of the learner
    supervisor      the run's own process, keepers, writers of checkpoints
    others          processes that are none of the run's
    idle, stolen    cores without work; cores that the hypervisor gave to somebody else

achieved / limit = (cores in the three stages / cores) * (cost of the stages alone / cost in the run): what is lost, is
lost to cores that did something else or nothing, or to stages that are dearer beside each other than alone.
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
"""TensorBoard's files have it from the first update on."""
START_SECONDS = 300.0
TICKS = os.sysconf("SC_CLK_TCK")
MOST_OFF = 0.1
"""Share of the cores that an account may have too much or too little."""


@dataclass
class Reading:
    """Totals since any moment, in seconds."""

    at: float
    steps: int
    ran: dict[tuple[str, int], float]
    """(part, thread) -> time on a core."""
    waited: dict[tuple[str, int], float]
    """For a core, as in `ran`."""
    machine: float
    """CPU time of all processes of the machine."""
    idle: float
    stolen: float
    alive: frozenset[int]
    """Actors and learners."""


@dataclass
class Watch:
    """The processes of a run. pid: of the run itself; units, rows: how many mailboxes it has, of how many rows."""

    pid: int
    spec: EnvSpec
    units: int
    rows: int
    folder: Path
    """Of the run."""
    steady: float = 0.0
    """When all rows were there and an update was made, in seconds since the epoch; 0 before."""
    updated: float = 0.0
    """When the first update was seen."""
    _boxes: list[Mailbox] = field(default_factory=list)
    _played: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    def follow(self, seconds: float, cores: int) -> dict[str, float]:
        """Return the account of the first `seconds` in which every row of every unit is there and learned from.

        Raises RuntimeError if the run ends before or is not steady in START_SECONDS, or if the account is wrong.
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
        if len(self._boxes) < self.units:
            processes = _tree(psutil.Process(self.pid))
            learners = [process.pid for process, role in processes if role == "learner"]
            self._boxes = [box for pid in learners for box in _mailboxes(pid, self.spec, self.rows)]
        for box in self._boxes:
            if box.header[STEPS]:  # a row that is not there delivers `first` in every step
                played_R = self._played.setdefault(id(box), np.zeros(self.rows, np.bool_))
                played_R |= ~box.step.first
        return len(self._played) >= self.units and all(played_R.all() for played_R in self._played.values())

    def _missing(self) -> str:
        played = sum(int(played_R.sum()) for played_R in self._played.values())
        updates = "" if self.updated else "no update was made, "
        return f"{updates}{played} of its {self.units * self.rows} rows had been played"

    def read(self) -> Reading:
        """Read all counters now."""
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
    """Yield a process and all below it as ("actor" | "learner" | "other")."""
    yield process, role
    try:
        for child in process.children():  # what an actor or a learner starts belongs to it
            yield from _tree(child, role_of(child.cmdline()) if role == "other" else role)
    except psutil.Error:  # it has ended meanwhile
        return


def role_of(command: Sequence[str]) -> str:
    """Return what a process is by its command line: "actor", "learner" or "other".

    A keeper is "other", although its own command line ends with that of its child.
    """
    if any(Path(word).name == "keeper.py" for word in command):
        return "other"
    modules = {"pbt_rl.actors.actor": "actor", "pbt_rl.learner.learner": "learner"}
    return next((role for module, role in modules.items() if module in command), "other")


def _threads(pid: int) -> Iterator[tuple[int, float, float]]:
    """Yield (thread, seconds on a core, seconds in the queue for one)."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            on_cpu, in_queue, _ = (task / "schedstat").read_text().split()
            yield int(task.name), int(on_cpu) / 1e9, int(in_queue) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return


def _machine_seconds() -> NDArray[np.float64]:
    """Return user, nice, system, idle, iowait, irq, softirq, steal of the cores that this process may use."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = [[int(x) for x in line[1:9]] for line in lines if line[0] in mine]
    seconds: NDArray[np.float64] = np.sum(ticks, axis=0) / TICKS
    return seconds


def _mailboxes(pid: int, spec: EnvSpec, rows: int) -> list[Mailbox]:
    """Map the mailboxes that a process holds open."""
    found: dict[int, Mailbox] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if MAILBOX.match(str(link.readlink())):
                box = Mailbox(spec, rows, os.open(link, os.O_RDWR))
                found[os.fstat(box.fd).st_ino] = box
                box.close()  # the mapping stays
    return list(found.values())


def account(before: Reading, after: Reading, cores: int) -> dict[str, float]:
    """Return the cores that each part used, and the CPU-microseconds per step of each stage.

    Raises RuntimeError if they do not add up to the machine's.
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
    )  # the kernel counts the machine's by ticks, on some machines 6 % too few
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
    """Return the seconds of each part between two readings. The time of threads that have ended is the others'."""
    passed = dict.fromkeys(PARTS, 0.0)
    for (part, thread), seconds in after.items():
        passed[part] += seconds - before.get((part, thread), 0.0)
    return passed


def lost(figures: Mapping[str, float], alone: Mapping[str, float], cores: int) -> dict[str, float]:
    """Return the shares of the limit that were lost to what; with the share that was reached they multiply to 1.

    alone: stage -> CPU-microseconds per step, measured apart. "achieved" = (1 - "not in a stage") / (1 +
    "dearer").
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
    """Return the account as lines of text. alone, beside: CPU-microseconds per step of each stage."""
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
        f"stolen; stages {shares['dearer than alone']:+.1%} dearer than alone "
        f"({sum(beside.values()) / sum(alone.values()) - 1:+.1%} already without a run, beside each other)"
    )
    return lines
