"""`pbt-rl eval`: play a trained member."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pbt_rl.cli.parse import parse
from pbt_rl.errors import require
from pbt_rl.options import option, validate
from pbt_rl.record.saved import Source
from pbt_rl.record.trust import Trust


@dataclass(frozen=True)
class EvalCommand:
    """Play a trained member with its own weights and print its true objective."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, such as runs/demo."""
    member: str = "best"
    """`best` (of that checkpoint), or the id of a member."""
    at: int | None = None
    """Frames of a checkpoint, RUN/checkpoints/at_FRAMES. None: the newest whole one; the run may still go on."""
    episodes: int = option(10, at_least=1)
    """Whole episodes to play."""
    video: Path | None = None
    """Write the first episode as a video (.mp4 or .gif)."""
    seed: int = option(0, at_least=0)
    """Seed of environments and actions."""
    greedy: bool = False
    """Take the most probable action instead of sampling."""
    against: str = ""
    """Play games against others, in every seat equally often, and print who won: `random`; a member of a run as
    RUN[@FRAMES][:MEMBER]; or a policy of your own as module:factory."""

    trust: bool = False
    """Import the modules that config.json names, and use its paths. They run as your own code does."""
    env: str = ""
    """Environment of the run, if it is your own (module:factory): given here, it is imported without --trust."""
    env_option: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Option of that environment, likewise."""
    algo: str = ""
    """Algorithm of the run, likewise."""
    encoder: Annotated[str, tyro.conf.arg(name="model.encoder")] = ""
    """Encoder of the run, likewise."""

    @property
    def source(self) -> Source:
        """Who plays."""
        return Source(self.run, self.at, self.member)

    @property
    def trusted(self) -> Trust:
        """What is followed of what the runs name."""
        given = {
            "env": (self.env,),
            "env-option": self.env_option,
            "algo": (self.algo,),
            "model.encoder": (self.encoder,),
        }
        return Trust.of(self.trust, given)

    def __post_init__(self) -> None:
        validate(self)
        require(not self.against or self.video is None, "video", self.video, "leave it out with --against")


def run(arguments: list[str]) -> int:
    """Play whole episodes, or games against others."""
    command = parse(EvalCommand, "pbt-rl eval", arguments)
    if command.against:
        from pbt_rl.play.against import evaluate_against

        evaluate_against(
            command.source,
            command.against,
            command.episodes,
            command.seed,
            greedy=command.greedy,
            trust=command.trusted,
        )
        return 0
    from pbt_rl.play.evaluate import evaluate

    evaluate(
        command.source,
        command.episodes,
        command.video,
        command.seed,
        greedy=command.greedy,
        trust=command.trusted,
    )
    return 0
