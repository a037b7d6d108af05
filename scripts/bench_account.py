"""Where the cores of a machine went while a run trained: the account that scripts/bench.py prints under its figures.

Over a window of the run the kernel is asked what each thread of the run's processes used and how long it waited for a
core although it had work (`/proc/PID/task/TID/schedstat`), and what the cores did (`/proc/stat`). Steps are read from
the mailboxes of the run, which the learner holds open. So nothing of the run is changed or slowed by it.

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

import mmap
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from pbt_rl.wire.mailbox import BUSY_NS, HEADER, STEPS

STAGES = ("environment", "inference", "learning")
PARTS = (*STAGES, "supervisor")
MAILBOX = re.compile(r"/memfd:pbt_rl-mailbox-")
START_SECONDS = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Reading:
    """Totals since any moment, in seconds."""

    at: float
    steps: int
    busy: float
    """CPU time of the environments in their units alone, without mailboxes."""
    ran: dict[str, float]
    waited: dict[str, float]
    """For a core."""
    machine: float
    """CPU time of all processes of the machine."""
    idle: float
    stolen: float


@dataclass
class Watch:
    """The processes of a run. pid: of the run itself."""

    pid: int
    _headers: list[NDArray[np.int64]] = field(default_factory=list)

    def wait_for_steps(self) -> bool:
        """Return when every unit has stepped; False if the run has ended. Raises RuntimeError if it takes too long."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE:
                return False
            learners = [process.pid for process, role in self._processes() if role == "learner"]
            self._headers = [header for pid in learners for header in _mailbox_headers(pid)]
            if self._headers and all(header[STEPS] for header in self._headers):
                return True
            time.sleep(0.2)
        raise RuntimeError(f"no step was seen in {START_SECONDS:.0f} s")

    def read(self) -> Reading:
        """Read all counters now."""
        ran, waited = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
        at = time.monotonic()
        steps, busy = (sum(int(header[i]) for header in self._headers) for i in (STEPS, BUSY_NS))
        for process, role in self._processes():
            for thread, on_cpu, in_queue in _threads(process.pid):
                part = {"actor": "environment", "other": "supervisor"}.get(role) or (
                    "inference" if thread == process.pid else "learning"
                )
                ran[part] += on_cpu
                waited[part] += in_queue
        user, nice, system, idle, io, irq, soft, stolen = _machine_seconds()
        return Reading(
            at, steps, busy / 1e9, ran, waited, user + nice + system + irq + soft, idle + io, stolen
        )

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        """Yield the processes of the run as ("actor" | "learner" | "other")."""
        yield from _tree(psutil.Process(self.pid), "other")


def _tree(process: psutil.Process, role: str) -> Iterator[tuple[psutil.Process, str]]:
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
    modules = {"pbt_rl.wire.actor": "actor", "pbt_rl.learner.learner": "learner"}
    return next((role for module, role in modules.items() if module in command), "other")


def _threads(pid: int) -> Iterator[tuple[int, float, float]]:
    """Yield (thread, seconds on a core, seconds in the queue for one)."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            on_cpu, in_queue, _ = (task / "schedstat").read_text().split()
            yield int(task.name), int(on_cpu) / 1e9, int(in_queue) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return


def _machine_seconds() -> list[float]:
    """Return user, nice, system, idle, iowait, irq, softirq, steal of the cores that this process may use."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = [[int(x) for x in line[1:9]] for line in lines if line[0] in mine]
    return [float(total) / TICKS for total in np.sum(ticks, axis=0)]


def _mailbox_headers(pid: int) -> list[NDArray[np.int64]]:
    """Map the headers of the mailboxes that a process holds open, for reading."""
    found: dict[int, NDArray[np.int64]] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if not MAILBOX.match(str(link.readlink())):
                continue
            fd = os.open(link, os.O_RDONLY)
        except OSError:  # closed meanwhile
            continue
        try:
            size = HEADER.shape[0] * 8
            memory = mmap.mmap(fd, size, prot=mmap.PROT_READ)
            found[os.fstat(fd).st_ino] = np.ndarray(HEADER.shape, HEADER.dtype, buffer=memory)
        finally:
            os.close(fd)
    return list(found.values())


def account(before: Reading, after: Reading, cores: int) -> dict[str, float]:
    """Return the cores that each part used, and the CPU-microseconds per step of each stage."""
    seconds, steps = after.at - before.at, max(1, after.steps - before.steps)
    ran = {part: after.ran[part] - before.ran[part] for part in PARTS}
    total = {f"{part} cores": ran[part] / seconds for part in PARTS}
    idle, stolen = (after.idle - before.idle) / seconds, (after.stolen - before.stolen) / seconds
    total |= {"others cores": max(0.0, cores - idle - stolen - sum(total.values()))}
    total |= {"idle cores": idle, "stolen cores": stolen}
    waited = {
        f"{part} waiting for a core": (after.waited[part] - before.waited[part]) / seconds for part in PARTS
    }
    costs = {f"{part} microseconds": ran[part] / steps * 1e6 for part in STAGES}
    return {
        "seconds": seconds,
        "steps": float(steps),
        **total,
        **waited,
        **costs,
        "units microseconds": (after.busy - before.busy) / steps * 1e6,
    }


def follow(pid: int, seconds: float, cores: int) -> dict[str, float]:
    """Account for a run that was just started and trains for `seconds`: from a quarter of that on, to its end.

    Empty if the run ends before it has taken a step.
    """
    watch = Watch(pid)
    if not watch.wait_for_steps():
        return {}
    time.sleep(seconds / 4)
    before = watch.read()
    time.sleep(seconds * 0.7)
    return account(before, watch.read(), cores)


def lost(figures: Mapping[str, float], alone: Mapping[str, float], cores: int) -> dict[str, float]:
    """Return the shares of the limit that were lost to what; with the share that was reached they multiply to 1.

    alone: stage -> CPU-microseconds per step, measured apart. "achieved" = (1 - "not in a stage") / (1 +
    "dearer").
    """
    in_stages = sum(figures[f"{part} cores"] for part in STAGES) / cores
    dearer = sum(figures[f"{part} microseconds"] for part in STAGES) / sum(alone.values()) - 1
    return {
        "idle": figures["idle cores"] / cores,
        "supervisor, others, stolen": sum(
            figures[f"{part} cores"] / cores for part in ("supervisor", "others", "stolen")
        ),
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
