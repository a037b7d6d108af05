"""Frame rates of a run, and its busy processor time by stage."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RATE_WINDOW_SECONDS = 10.0
STRETCH_SECONDS, LEAST_STRETCH_SECONDS = 60.0, 5.0
RECENT_REPORTS = 5
HISTORY_REPORTS = 10_000
"""With more reports, each second one of the older half is dropped, because a run of a month has millions."""


@dataclass(frozen=True)
class Spent:
    """Resources used at a checkpoint: `seconds` and `training_seconds` of `Throughput`, and total frames."""

    seconds: float
    training_seconds: float
    frames: int


class Throughput:
    """Frames and stage seconds over time. The seconds of a resumed run include those before the resume.

    clock: seconds since any moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._before = Spent(0.0, 0.0, 0)
        self._history: list[tuple[float, int]] = [(0.0, 0)]
        """(seconds, frames of the population) per report; older reports are thinned out."""
        self._training_since: float | None = None
        self._training_until: float | None = None
        self._stages: dict[str, float] = {}
        self._stretch: deque[tuple[float, Mapping[str, float]]] = deque()
        """(seconds, stage seconds) of the views of the last minute."""

    def resume(self, spent: Spent) -> None:
        """Continue from the usage before the resume; the time until now does not count."""
        self._before, self._began = spent, self._clock()
        self._history = [(spent.seconds, spent.frames)]

    @property
    def spent(self) -> Spent:
        """Usage so far, with the frames of the last report."""
        return Spent(self.seconds, self.training_seconds, self._history[-1][1])

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._before.seconds + self._clock() - self._began

    @property
    def training_seconds(self) -> float:
        """Since the first frames, without the time from a resume to the first frames after it, nor that of the end."""
        until = self.seconds if self._training_until is None else self._training_until
        now = 0.0 if self._training_since is None else until - self._training_since
        return self._before.training_seconds + now

    def end(self) -> None:
        """Stop the training clock, because saving and evaluation do not count."""
        self._training_until = self.seconds

    @property
    def trains(self) -> bool:
        """True once frames were made since the start or resume."""
        return self._training_since is not None

    @property
    def stalled_seconds(self) -> float:
        """Since the start without frames, or since the last ones, if longer than between the reports before; else 0."""
        if not self.trains:
            return self.seconds - self._before.seconds
        newest = bisect_left(self._history, self._history[-1][1], key=lambda point: point[1])
        recent = self._history[max(0, newest - RECENT_REPORTS) : newest + 1]
        if len(recent) < 2 or self._training_until is not None:
            return 0.0
        usual = (recent[-1][0] - recent[0][0]) / (len(recent) - 1)
        silent = self.seconds - recent[-1][0]
        return silent if silent > max(LEAST_STRETCH_SECONDS, 3 * usual) else 0.0

    def note(self, frames: int, stage_seconds: Mapping[str, float]) -> None:
        """Add a report. frames: of the population, in total."""
        now = self.seconds
        if frames > self._before.frames and self._training_since is None:
            self._training_since = now
        self._history.append((now, frames))
        if len(self._history) > HISTORY_REPORTS:
            half = HISTORY_REPORTS // 2
            self._history[:half] = self._history[:half:2]
        _add(self._stages, stage_seconds)

    def busy_threads(self, environment_seconds: float) -> dict[str, float]:
        """Return the mean busy threads by stage over the last minute; nothing in the first seconds.

        environment_seconds: CPU time of environments since the last call. The window is long because stages report when
        they end, so that shares of one second would alternate between 0 and 1.
        """
        stages, self._stages = self._stages, {}
        _add(stages, {"environment": environment_seconds})  # learners report that of simulators
        now = self.seconds
        self._stretch.append((now, stages))
        while self._stretch[0][0] < now - STRETCH_SECONDS:
            self._stretch.popleft()
        elapsed = now - self._stretch[0][0]
        if elapsed < LEAST_STRETCH_SECONDS:
            return {}
        total: dict[str, float] = {}
        for _, spent in list(self._stretch)[1:]:  # what the first one spent was before
            _add(total, spent)
        return {stage: seconds / elapsed for stage, seconds in total.items()}

    def rate(self) -> float:
        """Return frames/s over the last seconds; over more of them where reports are rarer (large batches)."""
        now = self._history[-1][0]
        index = self._first_since(now - RATE_WINDOW_SECONDS)
        while index > 0 and now - self._history[index][0] < RATE_WINDOW_SECONDS / 2:
            index -= 1
        return self._rate_from(index)

    def steady_rate(self) -> float:
        """Return frames/s over the last three quarters of the time since the first frames (of the resume)."""
        start = self._history[0][0] if self._training_since is None else self._training_since
        return self._rate_from(self._first_since(start + (self._history[-1][0] - start) / 4))

    def _first_since(self, seconds: float) -> int:
        """Return the index of the first report at or after this time, or of the one before the last."""
        index = bisect_left(self._history, seconds, key=lambda point: point[0])
        return max(0, min(index, len(self._history) - 2))

    def _rate_from(self, index: int) -> float:
        """Return frames/s from a report to the last one."""
        first, last = self._history[index], self._history[-1]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


def _add(total: dict[str, float], stages: Mapping[str, float]) -> None:
    for stage, seconds in stages.items():
        total[stage] = total.get(stage, 0.0) + seconds
