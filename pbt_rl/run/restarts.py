"""Replaces actors that died or hang, as long as that can help."""

from __future__ import annotations

from pbt_rl.config import Config
from pbt_rl.envs.base import EnvSetupError
from pbt_rl.errors import RunFailed
from pbt_rl.run.fleet import ActorFailed, Fleet
from pbt_rl.run.recorder import Recorder


class ActorRestarts:
    """Counts the restarts of a run, and ends it with the cause when there are too many."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        self._config, self._recorder = config, recorder
        self.count = 0
        self._seen: dict[str, int] = {}
        """How often each error caused a restart."""

    def replace(self, fleet: Fleet, failed: ActorFailed) -> None:
        """Restart an actor. Raises EnvSetupError if it never became usable, RunFailed if it happened too often."""
        if failed.user_error:
            raise EnvSetupError(failed.text)
        if not failed.hung and fleet.actions_given(failed.actor) == 0 and "killed" not in failed.text:
            raise EnvSetupError(
                f"{self._config.env} cannot be used: it raised when it was made or reset.\n{failed.text}"
            )
        self.count += 1
        self._recorder.actor_restarted(failed, self._shortened(failed.text.strip()))
        if self.count > self._config.max_actor_restarts:
            raise RunFailed(
                f"actors were restarted {self.count} times, more than --max-actor-restarts "
                f"{self._config.max_actor_restarts}; the last one:\n{failed.text}"
            )
        fleet.restart_actor(failed.actor)

    def _shortened(self, error: str) -> str:
        """Return the whole error the first time, later the last line of one that has several."""
        lines = error.splitlines()
        times = self._seen[error] = self._seen.get(error, 0) + 1
        return error if times == 1 or len(lines) < 2 else f"the same error again ({times} times): {lines[-1]}"
