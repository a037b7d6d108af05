"""`pbt-rl export`: a trained member as files for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pbt_rl.cli.evaluate import Played
from pbt_rl.cli.parse import parse
from pbt_rl.options import option, validate


@dataclass(frozen=True)
class ExportCommand(Played):
    """Write a trained member as a file for other programs, with a model card."""

    format: Literal["onnx", "safetensors", "rsl_rl"] = "onnx"
    """onnx: the network as a function from observations to actions. safetensors: its weights by name. rsl_rl: a
    checkpoint for RSL-RL's runner, with its options and the schedule that PBT found as JSON."""
    out: Path | None = None
    """Folder to write to. None: `export/policy_NN` in the run's folder."""
    episodes: int = option(10, at_least=0, zero="none")
    """Episodes to play for the score on the model card."""
    seed: int = option(0, at_least=0)
    """Seed of those episodes."""

    def __post_init__(self) -> None:
        validate(self)


def run(arguments: list[str]) -> int:
    """Write the files and print their paths."""
    command = parse(ExportCommand, "pbt-rl export", arguments)
    from pbt_rl.play.export.member import export_member

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
