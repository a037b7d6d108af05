"""Python API of training. `pbt_rl.train(env="gym/CartPole-v1", num_policies=4)` corresponds to `pbt-rl train`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbt_rl.config import Config
from pbt_rl.config.command import layers_of
from pbt_rl.config.start_values import with_start_values
from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import read_journal
from pbt_rl.record.saved import continued_config

if TYPE_CHECKING:
    from pbt_rl.run.callbacks import OnCheckpoint, OnDecision, OnReport


@dataclass(frozen=True)
class MemberResult:
    """State of a member at the end of a run."""

    id: int
    objective: float | None
    """Objective in training, usually the mean true objective of the latest episodes. None if unknown, for example
    before the first episode since the member's last change."""
    episodes: int
    """Number of finished training episodes."""
    generation: int
    """Number of changes of the member's weights or values."""
    frames: int
    hypers: dict[str, float]
    shaping: dict[str, float]
    """Weights of reward terms, by name."""
    final: dict[str, float] | None
    """Final evaluation: "mean" and "spread" (std) of the true objective, and number of "episodes". None if the member
    was not in the final evaluation.
    """
    status: str
    """`stopped`, `parked`, or empty for a member that trained until the end of the run."""


@dataclass(frozen=True, repr=False)
class Result:
    """Result of a finished run."""

    folder: Path
    """Folder of the run, with config, journal, weights and TensorBoard files."""
    summary: dict[str, Any]
    """Content of `summary.json`: reason for the end, best member, and all members."""

    def __repr__(self) -> str:
        """Format the folder and the reason for the end."""
        return f"<Result of {self.folder}: {len(self.summary['members'])} members, ended: {self.ended}>"

    @classmethod
    def of(cls, folder: Path | str) -> Result:
        """Read the result of a finished run from its folder. Raises RunFailed without a readable summary."""
        paths = RunFolder(Path(folder))
        try:
            return cls(paths.path, json.loads(paths.summary.read_text()))
        except OSError as error:
            raise RunFailed(
                f"{paths.summary} cannot be read: {error.strerror}. Has the run ended?"
            ) from error
        except ValueError as error:
            raise RunFailed(f"{paths.summary} is damaged: {error}") from error

    @property
    def ended(self) -> str:
        """Reason for the end: `frames`, `seconds`, `objective`, `all members are done`, or the reason of a `Stop`.

        In a folder that `Result.of` reads, also `failed`, `interrupted by SIGNAL`, or `CALLBACK raised ERROR`.
        """
        return str(self.summary["ended"])

    @property
    def members(self) -> list[MemberResult]:
        """All members, in order of id."""
        names = MemberResult.__dataclass_fields__
        return [MemberResult(**{n: m.get(n) for n in names}) for m in self.summary["members"]]

    @property
    def best(self) -> MemberResult | None:
        """Best member, or None if no member has a finite objective."""
        best = self.summary["best_member"]
        return None if best is None else self.members[best]

    @property
    def paths(self) -> RunFolder:
        """Paths of the run's files: `paths.journal`, `paths.checkpoints`, `paths.values(member)` and others."""
        return RunFolder(self.folder)

    @property
    def journal(self) -> list[dict[str, Any]]:
        """All events of the run, in order. docs/reference/run-files.md describes the events."""
        return read_journal(self.paths.journal)


def train(
    config: Config | None = None,
    /,
    *,
    on_report: OnReport | None = None,
    on_decision: OnDecision | None = None,
    on_checkpoint: OnCheckpoint | None = None,
    **options: Any,
) -> Result:
    """Train a population and return its result.

    Give either `config` or `options`.

    - config: complete config. Recipes are not applied.
    - options: fields of `Config`. As on the command line, options override the recipe of the environment. Nested
      options are mappings (`learner={"batch": 512}`) or dotted names (`**{"learner.batch": 512}`). Keyword arguments of
      an environment are a mapping (`env_option={"is_slippery": False}`).
    - on_report(view): called about once a second, and at the end, with a `RunView`: `view.frames` (sum over members),
      `view.members[0].frames`, `.objective`, `.values`, `.stats`. The callback may return metrics for TensorBoard:
      name -> number, or name -> {member: number}.
    - on_decision(report, decisions): called after each comparison that has decisions, with the
      `PopulationReport` of that time and the decisions.
    - on_checkpoint(written): called after each checkpoint, with `written.path` and `written.frames`.

    If a callback returns `pbt_rl.Stop(reason)`, the run is saved and ends. If a callback raises an exception, the run
    is saved, and `train` raises this exception. Keep callbacks short, because they run in the supervisor's thread.

    In a script, call this function under `if __name__ == "__main__":`. Ctrl-C ends a run only in the main thread. In
    other threads, end a run by a callback.

    Raises ConfigError or EnvSetupError if you must fix the cause, usually before training starts. Raises RunFailed if
    the run fails or a signal ends it.
    """
    if config is None:
        layers = layers_of(options)
        config = layers.config(continued_config(layers.values))
    elif not isinstance(config, Config):
        raise ConfigError(f"train takes a Config or options by name, such as env={config!r:.200}")
    elif options:
        raise ConfigError(f"train takes a Config or options, not both: {', '.join(options)}")
    else:
        config = _complete(config)
    from pbt_rl.run.callbacks import Callbacks
    from pbt_rl.run.train import train as supervise

    callbacks = Callbacks(on_report, on_decision, on_checkpoint)
    code = supervise(config, callbacks)
    folder = callbacks.folder
    assert folder is not None, "a finished run has a folder"
    if code:
        raise RunFailed(f"the run in {folder} was ended by signal {code - 128}")
    return Result.of(folder)


def _complete(config: Config) -> Config:
    """Read the file of start values of a config, if any.

    Raises ConfigError if `hours` differs from the budget in seconds. (Only `pbt_rl.train(hours=...)` derives this
    budget and the times of comparisons from `hours`.)
    """
    if config.hours is not None and config.train_for_seconds != 3600 * config.hours:
        raise ConfigError(
            f"hours={config.hours:g} cannot be used in a Config with train_for_seconds={config.train_for_seconds:g}, "
            "because a Config derives no options from hours: give pbt_rl.train(env=..., hours=...), or leave hours out"
        )
    return with_start_values(config)
