"""Options of games that saved members play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pbt_rl.errors import require
from pbt_rl.options import option


@dataclass(frozen=True)
class GamesOptions:
    """Fresh games of saved members: of the best one beside training, and of the first ones at the end."""

    final_episodes: int | None = option(None, at_least=0, zero="none", may_change=True, common=True)
    """Fresh episodes that the first four members play at the end, as `pbt-rl eval` plays them; the best one of these
    is named the best. If the number is given, up to four members without an objective since their last change play
    too. None: 20, within a tenth of the time trained and a minute, so none in a short run; none
    in serial mode. With --pbt.evaluate-episodes or --control all members play, for at most ten minutes, whatever the
    mode and the time trained; so long may games of a given number take, too."""
    evaluate_every_frames: int = option(0, at_least=0, zero="never", may_change=True)
    """Whenever every member has trained on this many more frames, save the run, and let the best member play fresh
    games beside training, as `pbt-rl eval` plays them: --final-episodes, or 20 (with tasks one of each). Their mean is
    a curve of its own in TensorBoard, `report` and `watch`."""
    evaluate_video: bool = option(False, may_change=True)
    """Film the first game of each of these evaluations for TensorBoard: half a minute, small. Needs pip install
    'pbt-rl[video]'."""

    def check_whole(self, config: Any) -> None:
        """Raise ConfigError if games are to be filmed that nobody plays."""
        require(
            bool(config.evaluate_every_frames) or not config.evaluate_video,
            "evaluate-video",
            "true",
            "it films the games of --evaluate-every-frames: give that too",
        )
