"""Fresh games that saved members play, beside training and at the end. An extra has them played; else nobody plays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.display.view import Evaluation, RunView
from pbt_rl.envs.base import EnvSpec
from pbt_rl.extras import load_object, offered
from pbt_rl.record.checkpoints import Checkpoint

Record = Callable[[Evaluation, bytes], None]
"""Takes a result, and the clip of its first episode as a GIF; empty without one."""


class NoGames:
    """The games of a run: none. Those of an extra do more."""

    def due(self, frames: int) -> bool:  # noqa: ARG002 - others read it
        """Whether a checkpoint is wanted for games. frames: the population's clock."""
        return False

    def take(self, frames: int) -> bool:
        """Return whether games are due; then the next ones are due later."""
        return self.due(frames)

    def begin_games(self, checkpoint: Checkpoint, member: int | None, all_frames: int) -> None:
        """Let a member of a checkpoint play. all_frames: of the whole population at the checkpoint."""

    def step(self) -> None:
        """Record the result of games that have ended."""

    def finish(self, patient: Callable[[], bool]) -> None:
        """Wait for the games that are being played while `patient`, for seconds, and end them."""

    def judged(
        self,
        view: RunView,
        spec: EnvSpec,  # noqa: ARG002 - others read these
        checkpoint: Checkpoint,  # noqa: ARG002
        trained_seconds: float,  # noqa: ARG002
        stop: Callable[[], bool],  # noqa: ARG002
    ) -> RunView:
        """Return the view of the end with final games. checkpoint: of the run's end. stop: gives them up."""
        return view


def games_of(
    config: Config,
    logs: Path | None,
    evaluated_frames: Callable[[], int],
    record: Record,
    note: Callable[[str], None],
) -> NoGames:
    """Return the games of a run, as an extra's `GAMES` has them.

    logs: folder for what is printed. evaluated_frames: returns the clock of the newest result that is recorded. note:
    is told what goes wrong, once.
    """
    makers = (load_object(path) for path in offered("pbt_rl", "GAMES"))
    return next((make(config, logs, evaluated_frames, record, note) for make in makers), NoGames())
