"""`pbt-rl eval`: play a trained member."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from pbt_rl.cli.parse import parse
from pbt_rl.errors import require
from pbt_rl.options import option, validate
from pbt_rl.record.saved import Source


@dataclass(frozen=True)
class Played:
    """A trained member."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, such as runs/demo."""
    member: str = "best"
    """`best` (of that checkpoint), or the id of a member."""
    at: int | None = None
    """Frames of a checkpoint, RUN/checkpoints/at_FRAMES. None: the newest whole one; the run may still go on."""
    trust: bool = False
    """Of a run that was not made here by you: import the modules that config.json names, and use its paths."""

    @property
    def source(self) -> Source:
        """Who plays."""
        return Source(self.run, self.at, self.member)


@dataclass(frozen=True)
class EvalCommand(Played):
    """Play a trained member with its own weights and print its true objective."""

    episodes: int = option(10, at_least=1)
    """Whole episodes to play."""
    video: Path | None = None
    """Write the best episode as a video (.mp4 or .gif); for that they are played one after another."""
    seed: int = option(0, at_least=0)
    """Seed of environments and actions."""
    greedy: bool = False
    """Take the most probable action instead of sampling."""
    against: str = ""
    """Play games against others, in every seat equally often, and print who won: `random`; a member of a run as
    RUN[@FRAMES][:MEMBER]; or a policy of your own as module:factory."""

    def __post_init__(self) -> None:
        validate(self)
        require(not self.against or self.video is None, "video", self.video, "leave it out with --against")


def run(arguments: list[str]) -> int:
    """Play whole episodes, or games against others."""
    command = parse(EvalCommand, "pbt-rl eval", arguments)
    if command.against:
        from pbt_rl.population.matchups.against import evaluate_against

        evaluate_against(
            command.source,
            command.against,
            command.episodes,
            command.seed,
            greedy=command.greedy,
            trust=command.trust,
        )
        return 0
    from pbt_rl.play.member import evaluate

    evaluate(
        command.source,
        command.episodes,
        command.video,
        command.seed,
        greedy=command.greedy,
        trust=command.trust,
    )
    return 0
