"""Frame rates of a run, and busy processor time by stage."""

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
"""Maximum number of stored reports. If there are more, every second report of the older half is dropped."""


@dataclass(frozen=True)
class Spent:
    """Time and frames spent until a checkpoint: see the properties of `Throughput`. frames: sum over all members."""

    seconds: float
    training_seconds: float
    frames: int


class Throughput:
    """Frames of a run over time, and busy seconds of its stages (such as inference and learning).

    In a resumed run, `seconds` and `training_seconds` include the time before the resume.
    clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._before = Spent(0.0, 0.0, 0)
        self._history: list[tuple[float, int]] = [(0.0, 0)]
        """(seconds, frames of the population) for each report. Some older reports are dropped."""
        self._training_since: float | None = None
        self._training_until: float | None = None
        self._stages: dict[str, float] = {}
        self._stretch: deque[tuple[float, Mapping[str, float]]] = deque()
        """(seconds, busy seconds of the stages since the previous view) for each view in the last minute."""

    def resume(self, spent: Spent) -> None:
        """Continue from the time and frames at the checkpoint. Exclude the time between construction and this call."""
        self._before, self._began = spent, self._clock()
        self._history = [(spent.seconds, spent.frames)]

    @property
    def spent(self) -> Spent:
        """Time spent so far, and the frames at the last report."""
        return Spent(self.seconds, self.training_seconds, self._history[-1][1])

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run, without pauses between end and resume."""
        return self._before.seconds + self._clock() - self._began

    @property
    def training_seconds(self) -> float:
        """Seconds of training, which begins with the first frames after a start or resume and stops at `end`."""
        until = self.seconds if self._training_until is None else self._training_until
        now = 0.0 if self._training_since is None else until - self._training_since
        return self._before.training_seconds + now

    def end(self) -> None:
        """Stop the clock of `training_seconds` before the last checkpoint and the final evaluation."""
        self._training_until = self.seconds

    @property
    def trains(self) -> bool:
        """True after the first frames since the start or resume."""
        return self._training_since is not None

    @property
    def stalled_seconds(self) -> float:
        """Seconds without new frames: 0 unless this time is much longer than usual.

        Before the first frames: seconds since the start or resume. After `end`, if there were frames: 0.
        """
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
        """Add a learner's report.

        frames: total frames of the population. stage_seconds: stage -> busy seconds since the learner's last report.
        """
        now = self.seconds
        if frames > self._before.frames and self._training_since is None:
            self._training_since = now
        self._history.append((now, frames))
        if len(self._history) > HISTORY_REPORTS:
            half = HISTORY_REPORTS // 2
            self._history[:half] = self._history[:half:2]
        _add(self._stages, stage_seconds)

    def busy_threads(self, environment_seconds: float) -> dict[str, float]:
        """Return the mean number of busy threads of each stage over the last minute. Empty in the first seconds.

        environment_seconds: CPU time of environments since the last call.
        The interval is long, because the time of a stage is reported when the stage ends.
        """
        stages, self._stages = self._stages, {}
        _add(stages, {"environment": environment_seconds})  # learners report the time of simulators
        now = self.seconds
        self._stretch.append((now, stages))
        while self._stretch[0][0] < now - STRETCH_SECONDS:
            self._stretch.popleft()
        elapsed = now - self._stretch[0][0]
        if elapsed < LEAST_STRETCH_SECONDS:
            return {}
        total: dict[str, float] = {}
        for _, spent in list(self._stretch)[1:]:  # the time of the first view is before this interval
            _add(total, spent)
        return {stage: seconds / elapsed for stage, seconds in total.items()}

    def rate(self) -> float:
        """Return frames/s over about RATE_WINDOW_SECONDS before the last report, or over longer if reports are rare."""
        now = self._history[-1][0]
        index = self._first_since(now - RATE_WINDOW_SECONDS)
        while index > 0 and now - self._history[index][0] < RATE_WINDOW_SECONDS / 2:
            index -= 1
        return self._rate_from(index)

    def steady_rate(self) -> float:
        """Return frames/s over the last three quarters of the training time since the start or resume."""
        start = self._history[0][0] if self._training_since is None else self._training_since
        return self._rate_from(self._first_since(start + (self._history[-1][0] - start) / 4))

    def _first_since(self, seconds: float) -> int:
        """Return the index of the first report at or after this time. The last report is excluded."""
        index = bisect_left(self._history, seconds, key=lambda point: point[0])
        return max(0, min(index, len(self._history) - 2))

    def _rate_from(self, index: int) -> float:
        """Return frames/s between a report and the last report."""
        first, last = self._history[index], self._history[-1]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


def _add(total: dict[str, float], stages: Mapping[str, float]) -> None:
    for stage, seconds in stages.items():
        total[stage] = total.get(stage, 0.0) + seconds
