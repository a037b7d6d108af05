"""`pbt-rl export`: a trained member, or a run's trials, as files for other programs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from pbt_rl.cli.evaluate import Played
from pbt_rl.cli.parse import parse
from pbt_rl.errors import require
from pbt_rl.options import option, validate

OF_ONE_MEMBER = ("member", "at", "episodes", "seed")
"""Options that say which member is exported, and how its score is found."""


@dataclass(frozen=True)
class ExportCommand(Played):
    """Write a trained member as a file for other programs, with a model card, or the run's trials for Optuna."""

    format: Literal["onnx", "torchscript", "safetensors", "rsl_rl", "optuna"] = "onnx"
    """onnx, torchscript: the network as a function from observations to actions. safetensors: its weights by name.
    rsl_rl: a checkpoint for RSL-RL's runner, with its options and the schedule that PBT found as JSON. optuna: all
    trials of the run (one per member and generation), as a journal storage that optuna-dashboard shows."""
    out: Path | None = None
    """Folder to write to. None: `export/policy_NN` in the run's folder, `export` for trials."""
    episodes: int = option(10, at_least=0, zero="none")
    """Episodes to play for the score on the model card."""
    seed: int = option(0, at_least=0)
    """Seed of those episodes."""

    def __post_init__(self) -> None:
        validate(self)
        if self.format == "optuna":
            of_one = [
                f.name for f in fields(self) if f.name in OF_ONE_MEMBER and getattr(self, f.name) != f.default
            ]
            remedy = "it has the trials of the whole run: leave out --" + ", --".join(of_one)
            require(not of_one, "format", self.format, remedy)


def run(arguments: list[str]) -> int:
    """Write the files and print their paths."""
    command = parse(ExportCommand, "pbt-rl export", arguments)
    if command.format == "optuna":
        from pbt_rl.export.trials import export_trials

        path = export_trials(command.run, command.out)
        print(f"{path}\nlook at it: pip install optuna-dashboard && optuna-dashboard {path}")
        return 0
    from pbt_rl.export.member import export_member

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
