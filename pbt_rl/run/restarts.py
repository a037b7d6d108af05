"""Replaces actors that died or hang, as long as that can help."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from dataclasses import replace

from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import RunFailed
from pbt_rl.run.fleet import ActorFailed, Fleet
from pbt_rl.run.recorder import Recorder

WINDOW_MINUTES = 10
"""Restarts count for this long: an environment that fails now and then may do so for ever."""
WORKED_STEPS = 1000
"""After this many steps of its units an environment has shown that it works: what fails then is not its setup."""
FEW_STEPS = 100
"""An actor that took fewer steps of its units than this was restarted for nothing, however long that took."""
KNOWN_ERRORS = 100
"""Different errors that are told apart, to show each of them whole once."""
MAX_ERROR_CHARACTERS = 10_000
ADDRESS = re.compile("0x[0-9a-f]+")
"""Each process has its own."""


class ActorRestarts:
    """Counts the restarts of a run, and ends it with the cause when they are too many or come to nothing."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        self._config, self._recorder = config, recorder
        self.count = 0
        self._recent: deque[float] = deque()
        """Times of the restarts within the window."""
        self._steps: dict[int, int] = {}
        """Actor -> steps of its units at its last restart."""
        self._for_nothing: Counter[int] = Counter()
        """Actor -> its newest restarts in a row after which it took few steps or none."""
        self._seen: dict[int, int] = {}
        """Hash of an error -> how often it caused a restart."""
        self._episodes = 0
        """Of the run, at the last restart."""
        self._without_episode = 0
        """Restarts since one has ended."""
        self._said = False

    def replace(self, fleet: Fleet, failed: ActorFailed) -> None:
        """Restart an actor. Raises EnvSetupError if it never became usable, RunFailed if it happens too often."""
        steps, text = fleet.actions_given(failed.actor), _bounded(failed.text)
        if failed.user_error and steps < WORKED_STEPS:
            raise EnvSetupError(text)
        if steps == 0 and not (failed.hung or failed.killed):
            raise EnvSetupError(
                f"{self._config.env} cannot be used: it raised when it was made or reset.\n{text}"
            )
        self.count += 1
        self._recorder.actor_restarted(replace(failed, text=text), self._shortened(text.strip()))
        self._check_rate(failed.actor, steps, text)
        self._check_episodes()
        try:
            fleet.restart_actor(failed.actor)
        except OSError as error:  # too many processes, too little memory
            raise RunFailed(
                f"actor {failed.actor} could not be started again: {error}; it had failed:\n{text}"
            ) from error

    def _check_rate(self, actor: int, steps: int, text: str) -> None:
        """Raise RunFailed if there are too many restarts. steps: that the actor's units took in the run."""
        limit, now = self._config.max_actor_restarts, time.monotonic()
        self._recent.append(now)
        while self._recent[0] < now - 60 * WINDOW_MINUTES:
            self._recent.popleft()
        taken, self._steps[actor] = steps - self._steps.get(actor, 0), steps
        self._for_nothing[actor] = self._for_nothing[actor] + 1 if taken < FEW_STEPS else 0
        too_many = f"times, more than --max-actor-restarts {limit}"
        if len(self._recent) > limit:
            raise RunFailed(
                f"actors were restarted {len(self._recent)} {too_many} within {WINDOW_MINUTES} minutes; the last one:\n"
                f"{text}"
            )
        if self._for_nothing[actor] > limit:
            raise RunFailed(
                f"actor {actor} was restarted {self._for_nothing[actor]} {too_many}, without reaching {FEW_STEPS} "
                f"steps in between; the last one:\n{text}"
            )

    def _check_episodes(self) -> None:
        """Say once that an environment always fails before its episode ends, if it does so too slowly for an error."""
        episodes = self._recorder.episodes
        self._without_episode = self._without_episode + 1 if episodes == self._episodes else 1
        self._episodes = episodes
        if self._without_episode > self._config.max_actor_restarts and not self._said:
            self._said = True
            self._recorder.note(
                f"warning: actors were restarted {self._without_episode} times, and no episode has ended in between: "
                "members without episodes have no objective and are not compared. Mend what the errors above name, or "
                "make episodes shorter"
            )

    def _shortened(self, error: str) -> str:
        """Return the whole error the first time, later the last line of one that has several."""
        key, lines = hash(ADDRESS.sub("", error)), error.splitlines()
        times = self._seen.pop(key, 0) + 1
        self._seen[key] = times  # last in order
        if len(self._seen) > KNOWN_ERRORS:
            del self._seen[next(iter(self._seen))]
        return error if times == 1 or len(lines) < 2 else f"the same error again ({times} times): {lines[-1]}"


def _bounded(text: str) -> str:
    """Return an error that can be shown and kept: its end, where the cause stands, without broken characters."""
    cut = len(text) - MAX_ERROR_CHARACTERS
    text = text.encode(errors="replace").decode()
    return text if cut <= 0 else f"({cut} characters left out)\n{text[cut:]}"
