"""A trial in a process of its own: how fast a run is once it learns, which its first seconds do not show.

    python -m pbt_rl.dial.trial CONFIG SECONDS      # frames/s go to the file CONFIG.speed

Environments are still being made in the first seconds, nothing is learned from before the first batch, and the first
update waits for compilers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pbt_rl.procs.paths import working_directory_last

if TYPE_CHECKING:
    from pbt_rl.display.view import RunView
    from pbt_rl.population.stopping import Stop

BATCHES = 3
"""Of each member, between which the speed is measured: of fewer it depends on when a batch ends."""


@dataclass
class Speed:
    """Frames/s of all members after the first update; before it, of what there was. seconds: at least, of the mean."""

    seconds: float
    rate: float = 0.0
    _since: tuple[float, int] | None = None
    _learned: bool = False
    _batches: int = 0
    _last: dict[str, float] = field(default_factory=dict)

    def note(self, view: RunView) -> bool:
        """Add a report; return whether it was the last one that is needed."""
        stats = [member.learning_stats for member in view.members]
        if all(stats) and stats[0] != self._last:  # one member counts: they learn one after the other
            self._batches += 1
            self._last = stats[0]
        if self._since is None or (self._batches and not self._learned):
            self._learned = self._batches > 0
            self._since = (view.seconds, view.frames) if view.frames else None
            return False
        seconds = view.seconds - self._since[0]
        if seconds > 0:
            self.rate = (view.frames - self._since[1]) / seconds
        return self._learned and self._batches > BATCHES and seconds >= self.seconds


def main(file: Path, seconds: float) -> int:
    """Train until the speed is known, or until the config says so, and write it down."""
    working_directory_last()
    from pbt_rl.envs.base import EnvSetupError  # noqa: PLC0415 - after that, with all that they import
    from pbt_rl.errors import ConfigError, RunFailed  # noqa: PLC0415
    from pbt_rl.population.stopping import Stop  # noqa: PLC0415
    from pbt_rl.record.folder import config_from_json  # noqa: PLC0415
    from pbt_rl.run.callbacks import Callbacks  # noqa: PLC0415
    from pbt_rl.run.train import train  # noqa: PLC0415

    speed = Speed(seconds)

    def on_report(view: RunView) -> Stop | None:
        return Stop("the speed is known") if speed.note(view) else None

    try:
        code = train(config_from_json(json.loads(file.read_text())), Callbacks(on_report))
    except (ConfigError, EnvSetupError, RunFailed) as error:
        print(error, file=sys.stderr)
        return 2
    file.with_suffix(".speed").write_text(str(speed.rate))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
