"""Sequential or parallel jobs of `pbt-rl sweep` and `pbt-rl prove`.

    points (grid x seeds) -> jobs (processes of `pbt-rl`), at most --jobs at a time -> exit codes

Each job is a process in a separate session. Ctrl-C therefore reaches only this process, which forwards signals
(FORWARDED) to the jobs. If this process dies, the jobs get SIGTERM, after which training runs save their state
(`bound_to_us`).
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar

from pbt_rl.errors import ConfigError
from pbt_rl.plan.machine import CORES
from pbt_rl.processes.child import bound_to_us
from pbt_rl.processes.signals import handling

LOGS = "logs"
"""Subfolder of a sweep that contains the output of the runs."""
POLL_SECONDS = 0.1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
GIVEN_BY_THE_SWEEP = ("name", "seed", "out", "overwrite", "resume")
"""Options of `pbt-rl train` that the user of a sweep cannot give, because the sweep determines them for each run."""
_MOST_NAME = 100
Item = TypeVar("Item")


@dataclass(frozen=True)
class Point:
    """One run of a sweep. values: option -> value on the command line. In `pbt-rl prove`: "arm" -> name of the arm."""

    name: str
    values: Mapping[str, str]
    seed: int


@dataclass(frozen=True)
class Share:
    """A job's share of the machine.

    devices: value of --devices. Empty means that the run's other options determine its devices. cpus: CPU affinity.
    cores: number of cores that the run may use. With a CPU quota, this can be less than the number of `cpus`.
    """

    devices: str
    cpus: frozenset[int]
    cores: int


@dataclass(frozen=True)
class Ended:
    """Run whose process has ended.

    code: exit code, or minus the number of the signal that ended the process. seconds: duration of the process.
    """

    point: Point
    code: int
    seconds: float


def points(grid: Mapping[str, Sequence[str]], seeds: Sequence[int]) -> list[Point]:
    """Return all combinations of values and seeds, grouped by seed. grid: option -> its values on the command line.

    Raises ConfigError if two runs have the same name, or if a name cannot be that of a folder.
    """
    found: dict[str, Point] = {}
    for seed in seeds:
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            point = Point(_name(chosen, seed), chosen, seed)
            if point.name in found:
                twice = f"two runs of the sweep would have the name {point.name}"
                raise ConfigError(f"{twice}: give each seed and value once")
            found[point.name] = point
    return list(found.values())


def _name(values: Mapping[str, str], seed: int) -> str:
    """Return a run's name: last part of each option, with the value, and the seed.

    Raises ConfigError if the name is too long, or does not begin with a letter or a digit.
    """
    parts = [f"{option.rpartition('.')[2]}_{text}" for option, text in values.items()]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", ".".join([*parts, f"seed{seed}"]))
    if len(name) > _MOST_NAME or not name[0].isalnum():
        too_long = f"the values of {', '.join(values)} are too long for a folder name"
        raise ConfigError(f"{too_long}: {name:.60}...")
    return name


def shares(jobs: int, devices: Sequence[str], cpus: Sequence[int], cores: int) -> list[Share]:
    """Divide devices and cores evenly among parallel jobs. Several jobs share one device or core if necessary.

    jobs: number of jobs. devices: names such as cuda:0, or empty if the options of each run determine its devices.
    cpus: ids of the cores in the CPU affinity. cores: number of cores that the jobs may use. (A CPU quota may allow
    fewer cores than `cpus` contains.)
    """

    def share(i: int) -> Share:
        mine = frozenset(_part(cpus, i, jobs))
        return Share(",".join(_part(devices, i, jobs)), mine, len(_part(range(cores), i, jobs)))

    return [share(i) for i in range(jobs)]


def _part(items: Sequence[Item], number: int, parts: int) -> Sequence[Item]:
    """Return the items of one job: consecutive items, or one item that several jobs share.

    number: index of the job. parts: number of jobs.
    """
    if not items:
        return ()
    if parts > len(items):
        return (items[number % len(items)],)
    return items[number * len(items) // parts : (number + 1) * len(items) // parts]


@dataclass
class _Job:
    point: Point
    share: Share
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    told: bool = False
    """True if the process has been sent a signal that ends it."""

    def send(self, number: int) -> None:
        self.told = self.told or number != signal.SIGUSR1
        self.process.send_signal(number)


class Sweep:
    """Scheduler of the runs of a sweep.

    folder: folder of the sweep. command: (point, value of --devices) -> arguments of `pbt-rl`. shares: one share of the
    machine for each parallel job. after: function that is called with the point of each run whose exit code is 0.
    """

    def __init__(
        self,
        folder: Path,
        command: Callable[[Point, str], list[str]],
        shares: Sequence[Share],
        after: Callable[[Point], None] = lambda _: None,
    ) -> None:
        self._folder, self._command, self._after = folder, command, after
        self._free = list(shares)
        self._running: list[_Job] = []
        self.signal: int | None = None
        """First signal that ended the sweep. No run is started after this signal."""

    def run(self, waiting: Sequence[Point]) -> list[Ended]:
        """Run the waiting jobs, at most one at a time on each `Share`. Return the jobs in order of their end.

        The result lacks the jobs that were not started because of a signal.
        """
        left, ended = list(waiting), list[Ended]()
        (self._folder / LOGS).mkdir(parents=True, exist_ok=True)
        with handling(FORWARDED, self._note):
            try:
                while self._running or (left and self.signal is None):
                    while left and self.signal is None and self._free:
                        self._start(left.pop(0), len(waiting) - len(left))
                    ended += self._reap(len(left))
                    time.sleep(POLL_SECONDS)
            finally:
                for job in self._running:  # empty unless this process had an error
                    job.process.terminate()
        return ended

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGUSR1:
            self.signal = self.signal or number
        for job in self._running:
            job.send(number)

    def _start(self, point: Point, number: int) -> None:
        share = self._free.pop(0)
        train = [sys.executable, "-m", "pbt_rl", *self._command(point, share.devices)]
        whole = os.sched_getaffinity(0)
        log = self._folder / LOGS / f"{point.name}.txt"
        try:
            os.sched_setaffinity(0, share.cpus)  # the child inherits it
            with log.open("ab") as out:
                process = subprocess.Popen(
                    bound_to_us(train, signal.SIGTERM),
                    env={**os.environ, CORES: str(share.cores)},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            os.sched_setaffinity(0, whole)
        job = _Job(point, share, process)
        self._running.append(job)
        if self.signal is not None and not job.told:  # the signal came while the process was starting
            job.send(self.signal)
        where = f" on {share.devices}" if share.devices else ""
        print(f"{number}: {point.name} begins{where}; its output is in {log}", flush=True)

    def _reap(self, left: int) -> list[Ended]:
        ended = []
        for job in list(self._running):
            code = job.process.poll()
            if code is None:
                continue
            self._running.remove(job)
            self._free.append(job.share)
            ended.append(Ended(job.point, code, time.monotonic() - job.began))
            how = "has ended"
            if code == 128 + (self.signal or 0):
                how = "is saved"
            elif self.signal is not None and code == -self.signal:
                how = "was ended before it began to train"
            elif code:
                how = f"FAILED with exit code {code}: {last_line(self._folder, job.point)}"
            to_go = left + len(self._running)
            print(f"{job.point.name} {how} ({ended[-1].seconds:.0f} s); {to_go} to go", flush=True)
            if not code:
                self._after(job.point)
        return ended


def last_line(folder: Path, point: Point) -> str:
    """Return the end of a run's output: its last line, at most 300 characters. Without output: "".

    After a failure, this line is usually the error message.
    """
    try:
        text = (folder / LOGS / f"{point.name}.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return (text.strip().splitlines() or [""])[-1].strip()[:300]
