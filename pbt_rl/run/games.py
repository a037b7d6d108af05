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

    def begin(self, checkpoint: Checkpoint, member: int | None, all_frames: int) -> None:
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


class Nobody:
    """Has games of saved members played: none. An extra's `GAMES` does more."""

    def games(
        self,
        config: Config,  # noqa: ARG002 - others read these
        logs: Path | None,  # noqa: ARG002
        evaluated_frames: Callable[[], int],  # noqa: ARG002
        record: Record,  # noqa: ARG002
        note: Callable[[str], None],  # noqa: ARG002
    ) -> NoGames:
        """Return the games of a run.

        logs: folder for what is printed. evaluated_frames: returns the clock of the newest result that is recorded.
        note: is told what goes wrong, once.
        """
        return NoGames()

    def recorded_late(self, journal: Path, position: int, frames: int) -> list[Evaluation]:  # noqa: ARG002
        """Return the results behind a position of a journal that hold for a run that goes on from there."""
        return []


def games() -> Nobody:
    """Return what has games played."""
    return next((load_object(path)() for path in offered("pbt_rl", "GAMES")), Nobody())
