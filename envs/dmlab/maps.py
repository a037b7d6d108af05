"""Compilation of level maps into the cache before training (`pbt-rl dmlab-cache`)."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pbt_rl.errors import EnvSetupError

from ..lookup import EnvOptions, probe
from .dmlab_options import DmlabOptions
from .lab_processes import LabError, Labs
from .vector_env import level_scripts, pool_seed, row_setup

PROGRESS_SECONDS = 5.0


class MapsFailed(RuntimeError):  # noqa: N818 - names the event
    """Error: an engine process ended or hung while it built maps."""


def build_maps(levels: Sequence[str], options: DmlabOptions, steps: int, jobs: int) -> frozenset[str]:
    """Build the maps of levels into the cache. Return the level scripts that the engine rejected.

    Each level is reset with each of its seeds (option `level_seeds`). After a failure, the remaining seeds of the level
    are skipped.

    levels: NAME in `dmlab/NAME`.
    steps: number of random steps after each reset, because some levels build maps during an episode.
    jobs: maximum number of parallel engines.
    Raises EnvSetupError for an unknown level, wrong options, and a cache folder that cannot be written. Raises
    MapsFailed if an engine process ends or hangs.
    """
    for level in levels:
        probe(f"dmlab/{level}", EnvOptions((options,)))
    _check_folder(options.cache_folder)
    scripts = dict.fromkeys(script for level in levels for script in level_scripts(level, options))
    work = deque((script, pool_seed(script, i)) for script in scripts for i in range(options.level_seeds))
    jobs = min(jobs, len(work))
    per_level, folder = options.level_seeds, options.cache_folder
    print(f"{len(scripts)} levels x {per_level} seeds on {jobs} engines, into {folder}")
    with closing(Labs([row_setup(options, {}, row) for row in range(jobs)])) as labs:
        return _Build(labs, work, steps).run()


class _Build:
    """Builder of the maps of all (level script, seed) pairs in `work`. Each row of `labs` handles one pair at a time.

    steps: number of random steps after each reset.
    """

    def __init__(self, labs: Labs, work: deque[tuple[str, int]], steps: int) -> None:
        self._labs, self._work, self._steps = labs, work, steps
        self._total, self._done, self._began = len(work), 0, time.monotonic()
        self._at: dict[int, str] = {}
        """Busy row -> level script of its request."""
        self._found = self._built = 0
        self._failed: set[str] = set()

    def run(self) -> frozenset[str]:
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
        return frozenset(self._failed)

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
            found, built = self._labs.rows[row].answer()
        except LabError as error:
            if self._labs.rows[row].lost:
                raise MapsFailed(f"level {script}: {error}") from None
            if script not in self._failed:
                print(f"level {script} is skipped: {error}", flush=True)
            self._failed.add(script)
        else:
            self._found += found
            self._built += built

    def _line(self) -> str:
        seconds = time.monotonic() - self._began
        left = seconds / self._done * (self._total - self._done) if self._done else 0.0
        return (
            f"{self._done}/{self._total} resets in {seconds:.0f} s, {left:.0f} s left; {self._built} "
            f"maps built, {self._found} found in the cache"
        )


def _check_folder(folder: str) -> None:
    if not folder:
        raise EnvSetupError("--level-cache none cannot be used here. Set it to a folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise EnvSetupError(
            f"--level-cache {folder} cannot be written: {error.strerror or error}. Use another folder"
        ) from error
