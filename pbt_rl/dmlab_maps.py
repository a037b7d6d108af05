"""`pbt-rl dmlab-cache`: engines that do nothing but build maps, so that training finds them in the cache.

consumes     (level, seed) pairs, level by level
produces     compiled maps in the cache; lines of progress
waits for    the engine that answers first
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pbt_rl.envs.dmlab.process import LabError, Labs
from pbt_rl.envs.dmlab.unit import DmlabOptions, level_scripts, pool_seed, row_setup
from pbt_rl.envs.registry import EnvOptions, probe
from pbt_rl.errors import ConfigError, RunFailed, require
from pbt_rl.plan import available_cpus

PROGRESS_SECONDS = 5.0
EXIT_OK, EXIT_FAILED = 0, 1


def fill(levels: Sequence[str], options: DmlabOptions, steps: int, jobs: int) -> int:
    """Reset every level with each seed of its pool; returns the exit code (1: some level failed).

    steps: random ones after each reset. jobs: engines at once, 0 for one a core. Raises ConfigError or EnvSetupError
    for what cannot be done at all, RunFailed where an engine's process ends.
    """
    require(len(levels) > 0, "levels", "(none)", "give one or more, such as dmlab30")
    require(options.level_seeds > 0, "level-seeds", options.level_seeds, "give 1 or more")
    require(steps >= 0, "steps", steps, "give 0 or more")
    require(jobs >= 0, "jobs", jobs, "give 0 (one a core) or more")
    for level in levels:
        probe(f"dmlab/{level}", EnvOptions(dmlab=options))
    _check_folder(options.cache_folder)
    scripts = dict.fromkeys(script for level in levels for script in level_scripts(level, options))
    work = deque((script, pool_seed(script, i)) for script in scripts for i in range(options.level_seeds))
    jobs = min(jobs or available_cpus(), len(work))
    print(
        f"{len(scripts)} levels x {options.level_seeds} seeds on {jobs} engines, into {options.cache_folder}"
    )
    with closing(Labs([row_setup(options, {}, row) for row in range(jobs)])) as labs:
        return _Filling(labs, work, steps).run()


class _Filling:
    """Deals the work to the rows of `labs`."""

    def __init__(self, labs: Labs, work: deque[tuple[str, int]], steps: int) -> None:
        self._labs, self._work, self._steps = labs, work, steps
        self._total, self._done, self._began = len(work), 0, time.monotonic()
        self._at: dict[int, str] = {}
        """Busy row -> the level that it works on."""
        self._counts: dict[int, tuple[int, int]] = {}
        """Row -> (maps that were there, maps that it built), in total."""
        self._failed: set[str] = set()

    def run(self) -> int:
        for row in range(len(self._labs.rows)):
            self._give(row)
        next_line = self._began + PROGRESS_SECONDS
        while self._at:
            self._labs.wait(list(self._at))
            for row in [r for r in self._at if self._labs.rows[r].answered or self._labs.rows[r].late]:
                self._take(row)
                self._give(row)
            if time.monotonic() >= next_line:
                next_line += PROGRESS_SECONDS
                print(self._line(), flush=True)
        print(self._line())
        return EXIT_FAILED if self._failed else EXIT_OK

    def _give(self, row: int) -> None:
        while self._work:
            script, seed = self._work.popleft()
            if script not in self._failed:
                self._at[row] = script
                self._labs.rows[row].ask("fill", script, seed, self._steps)
                return
            self._done += 1

    def _take(self, row: int) -> None:
        script = self._at.pop(row)
        self._done += 1
        try:
            self._counts[row] = self._labs.rows[row].answer()
        except LabError as error:
            if self._labs.rows[row].lost:
                raise RunFailed(f"level {script}: {error}") from None
            if script not in self._failed:
                print(f"level {script} is left out: {error}", flush=True)
            self._failed.add(script)

    def _line(self) -> str:
        found, built = (sum(counts[i] for counts in self._counts.values()) for i in (0, 1))
        seconds = time.monotonic() - self._began
        left = seconds / self._done * (self._total - self._done) if self._done else 0.0
        return (
            f"{self._done}/{self._total} resets in {seconds:.0f} s, {left:.0f} s left; "
            f"{built} maps built, {found} were there"
        )


def _check_folder(folder: str) -> None:
    if not folder:
        raise ConfigError("--level-cache none cannot be used: there would be nothing to fill; give a folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        fd, path = tempfile.mkstemp(dir=folder)
        os.close(fd)
        Path(path).unlink()
    except OSError as error:
        raise ConfigError(f"--level-cache {folder} cannot be written: {error.strerror or error}") from error
