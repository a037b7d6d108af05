"""Detection of environment bugs in the steps of any vector env: pictures, action masks, truncations and resets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from .base import ACTION_MASK, StepArrays
from .conventions import FIRST_OF_NEXT, MISSING_FINAL, once

LEAST_ENDS = 3
"""Minimum number of truncations before a warning. Every truncation so far must show the bug."""
SHADED = 200
"""Number of a run's first steps whose pictures and action masks are checked."""
FEWEST_SHADES = 8
"""Minimum difference between the largest and the smallest pixel value (0 to 255) in all checked steps of a picture. A
smaller difference indicates wrong bounds of the observation space.
"""
SLOW_RESET_SECONDS, SLOW_RESET_SHARE = 0.02, 0.5
"""Resets are slow if the mean reset takes more than SLOW_RESET_SECONDS, and if resets take more than SLOW_RESET_SHARE
of the time.
"""


class _ResetTimer:
    """Time that resets take: the additional duration of a step with a reset, compared with steps without a reset.

    Usually all rows of a vector env wait for a reset. The resets before the first episodes do not count.
    """

    def __init__(self) -> None:
        self.resets = 0
        self._ended_R: NDArray[np.bool_] | None = None
        self._seconds, self._steps = [0.0, 0.0], [0, 0]
        """[without a reset, with a reset]"""

    def note(self, out: StepArrays, seconds: float) -> None:
        """Record a step and its duration."""
        begun = 0 if self._ended_R is None else int((out.first & self._ended_R).sum())
        self._ended_R = out.episode_done.copy()
        self.resets += begun
        self._seconds[begun > 0] += seconds
        self._steps[begun > 0] += 1

    def measured(self) -> tuple[float, float]:
        """Return (mean seconds of a reset, share of the total time that resets take). (0.0, 0.0) without resets."""
        (without, with_resets), steps = self._seconds, self._steps
        resets = with_resets - steps[1] * without / max(1, steps[0])
        return resets / max(1, self.resets), resets / max(1e-9, without + with_resets)


class Watch:
    """Detector of environment bugs in the steps of any vector env.

    tell: called with the first warning of each kind (see `once`).
    pictures: names of the pictures whose range of pixel values is checked.
    steps: number of steps whose pictures and action masks are checked.

    Axes: R rows.
    """

    def __init__(
        self, tell: Callable[[str], None], pictures: Iterable[str] = (), steps: int = SHADED
    ) -> None:
        self._say = once(tell)
        self._shades = dict.fromkeys(pictures, (255, 0))
        self._allowed = False
        self._left = steps
        self._ends = dict[int, tuple[bytes, bool]]()
        """Row whose last step was a truncation -> (final observation, True if it is all zeros)."""
        self._firsts = dict[int, bytes]()
        """Row that was just reset after a truncation -> first observation of the new episode."""
        self._cut, self._due = 0, 10
        self._varied = False
        self._all_next = self._all_blank = True
        self._timer, self._timed = _ResetTimer(), [10, 100]

    def note(self, out: StepArrays, seconds: float) -> None:
        """Check a step of the vector env. seconds: duration of the step."""
        if self._left:
            self._look(out)
        if self._timed:
            self._timer.note(out, seconds)
            if self._timer.resets >= self._timed[0]:
                del self._timed[0]
                self._judge_resets()
        if self._ends or self._firsts or out.truncated.tobytes().count(1):
            self._compare(out)

    def _look(self, out: StepArrays) -> None:
        mask = out.obs.get(ACTION_MASK)
        self._allowed |= mask is None or bool(mask[~out.episode_done].any())
        for name, (darkest, brightest) in self._shades.items():
            array = out.obs[name]
            self._shades[name] = min(darkest, int(array.min())), max(brightest, int(array.max()))
        self._left -= 1
        if not self._left:
            self._judge_mask()
            self._judge_shades()

    def _compare(self, out: StepArrays) -> None:
        for row in [*self._firsts]:
            self._varied |= _observation(out, row)[0] != self._firsts.pop(row)
        for row in np.flatnonzero(out.first).tolist():
            if row in self._ends:
                (final, blank), (now, begins_blank) = self._ends.pop(row), _observation(out, row)
                self._firsts[row] = now
                self._cut += 1
                self._all_next &= final == now
                self._all_blank &= blank and not begins_blank
        # An agent that is truncated before the others waits for the end of the shared episode.
        cut_R = out.truncated & out.episode_done
        self._ends |= {row: _observation(out, row) for row in np.flatnonzero(cut_R).tolist()}
        if self._cut >= self._due:
            self._due *= 10
            self._judge_ends()
            self._judge_mask()

    def judge(self) -> None:
        """Warn of the bugs found so far. Call this after the last step."""
        self._judge_ends()
        self._judge_mask()
        self._judge_resets()
        if self._left:
            self._judge_shades()

    def _judge_ends(self) -> None:
        next_one = self._varied and self._all_next
        if self._cut >= LEAST_ENDS and (next_one or self._all_blank):
            self._say(MISSING_FINAL.format(self._cut, FIRST_OF_NEXT if next_one else "all zeros"))

    def _judge_resets(self) -> None:
        each, share = self._timer.measured()
        if each > SLOW_RESET_SECONDS and share > SLOW_RESET_SHARE:
            self._say(
                f"slow reset: a reset takes {1e3 * each:.0f} ms, in which all other rows wait, and {share:.0%} of all "
                "time is spent in resets: load files once in __init__, or make episodes longer"
            )

    def _judge_mask(self) -> None:
        if not self._allowed:
            self._say("the action mask is all zeros in every step: learning is impossible. Allow actions")

    def _judge_shades(self) -> None:
        for name, (darkest, brightest) in self._shades.items():
            if brightest - darkest < FEWEST_SHADES:
                self._say(
                    f"picture {name!r} has pixel values only from {darkest} to {brightest}, after its bounds were "
                    "scaled to 0 and 255: set the bounds of the space to the range of its numbers, or to infinity (the "
                    "array is then read as float32 numbers)"
                )


def _observation(out: StepArrays, row: int) -> tuple[bytes, bool]:
    """Return (bytes of a row's observation without the action mask, True if all numbers are 0)."""
    arrays = [array[row] for name, array in out.obs.items() if name != ACTION_MASK]
    return b"".join(array.tobytes() for array in arrays), not any(array.any() for array in arrays)
