"""Commands `pbt-rl eval` and `pbt-rl export`: evaluate a trained member, or export it for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pbt_rl.errors import require
from pbt_rl.options.declare import option
from pbt_rl.options.words import parse
from pbt_rl.record.saved import Source


@dataclass(frozen=True)
class Played:
    """Options that select a trained member of a run."""

    run: Path = option(positional=True)
    """Folder of a run, such as runs/demo."""
    member: str = "best"
    """Id of a member, or `best`: the best member of the checkpoint."""
    at: int | None = None
    """Frames of a checkpoint, RUN/checkpoints/at_FRAMES. Default: the newest complete checkpoint. The run may still be
    training."""
    trust: bool = False
    """Import the modules and use the paths in config.json, even if the run was not made by you on this machine."""

    @property
    def source(self) -> Source:
        """Checkpoint and member to load."""
        return Source(self.run, self.at, self.member)


@dataclass(frozen=True)
class EvalCommand(Played):
    """Evaluate a trained member and print its true objective."""

    episodes: int = option(10, at_least=1)
    """Number of evaluation episodes (of each task), or of games with --against."""
    video: Path | None = None
    """Write the best episode to this video file (.mp4 or .gif). Episodes then run one after another. With tasks,
    episodes run in parallel, and only the episodes of one environment are filmed."""
    seed: int = option(0, at_least=0)
    """Seed of environments and actions."""
    greedy: bool = False
    """Take the most probable action instead of sampling."""
    against: str = ""
    """Play games against an opponent and print the number of wins. The member plays each agent of the environment
    equally often. The opponent is `random`, a member (RUN[@FRAMES][:MEMBER]), or a custom policy (module:factory)."""

    def __post_init__(self) -> None:
        require(not self.against or self.video is None, "video", self.video, "leave it out with --against")


def run(arguments: list[str]) -> int:
    """Run `pbt-rl eval`: play evaluation episodes, or games against an opponent."""
    command = parse(EvalCommand, "pbt-rl eval", arguments)
    source, episodes, seed = command.source, command.episodes, command.seed
    how = {"greedy": command.greedy, "trust": command.trust}
    if command.against:
        from pbt_rl.population.matchups.against import evaluate_against

        evaluate_against(source, command.against, episodes, seed, **how)
    else:
        from pbt_rl.play.evaluate import evaluate

        evaluate(source, episodes, command.video, seed, **how)
    return 0


@dataclass(frozen=True)
class ExportCommand(Played):
    """Export a trained member for other programs, as a file with a model card."""

    format: Literal["onnx", "safetensors", "rsl_rl"] = "onnx"
    """onnx: the network from observations to actions. safetensors: the weights by name. rsl_rl: a checkpoint for
    RSL-RL's runner, with JSON files of the runner's options and of the schedule found by PBT."""
    out: Path | None = None
    """Output folder. Default: `export/policy_NN` in the run's folder."""
    episodes: int = option(10, at_least=0, zero="none")
    """Number of evaluation episodes for the score on the model card."""
    seed: int = option(0, at_least=0)
    """Seed of the evaluation episodes."""


def run_export(arguments: list[str]) -> int:
    """Run `pbt-rl export`: write the files and print their paths."""
    command = parse(ExportCommand, "pbt-rl export", arguments)
    from pbt_rl.play.export.export_member import export_member

    paths = export_member(
        command.source,
        command.format,
        command.out,
        episodes=command.episodes,
        seed=command.seed,
        trust=command.trust,
    )
    for path in paths:
        print(path)
    return 0
