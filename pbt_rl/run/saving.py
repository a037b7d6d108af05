"""Has the weights of the best member written: during the run when they are due, and at its end."""

from __future__ import annotations

from pathlib import Path

from pbt_rl.display.ranking import best_member
from pbt_rl.population.population import Population
from pbt_rl.record.folder import RunFolder
from pbt_rl.run.fleet import Fleet
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.wire.messages import MemberSaved, SaveFailed, SaveMember


class WeightSaver:
    """Sends the orders to save, and knows which of them are done."""

    def __init__(
        self, resolved: ResolvedRun, folder: RunFolder, population: Population, recorder: Recorder
    ) -> None:
        self._pack_of, self._every_frames = resolved.plan.pack_of, resolved.config.save_every_frames
        self._folder, self._population, self._recorder = folder, population, recorder
        self._next_frames = self._every_frames
        self._done: set[Path] = set()
        """Files that were written, or could not be."""

    def _save(self, fleet: Fleet, at_frames: int | None = None) -> tuple[int, Path]:
        """Have the best member's weights written, member 0's before any episode; return its id and the file."""
        best = best_member(self._population.views()) or 0
        path = self._folder.weights(best, at_frames)
        fleet.send(self._pack_of[best], SaveMember(best, path, self._population.members[best].values))
        return best, path

    def save_if_due(self, fleet: Fleet) -> None:
        """Keep the best member as it is now if the population has come far enough; nothing waits for it."""
        frames = self._population.least_frames
        if 0 < self._next_frames <= frames:
            at_frames = frames // self._every_frames * self._every_frames
            self._next_frames = at_frames + self._every_frames
            best, _ = self._save(fleet, at_frames)
            self._recorder.snapshot(best, at_frames)

    def save_at_end(self, fleet: Fleet) -> tuple[int, Path]:
        """Have the best member's weights written; return its id and the file."""
        return self._save(fleet)

    def note(self, message: MemberSaved | SaveFailed) -> None:
        """Note that an order is done."""
        self._done.add(message.path)
        if isinstance(message, SaveFailed):
            self._recorder.note(f"{message.path} could not be written: {message.reason}")

    def is_done(self, path: Path) -> bool:
        """Return whether this file was written, or could not be."""
        return path in self._done
