"""A run's folder: where each file lies, and the JSON files in it.

runs/NAME/
  config.json      the whole config
  journal.jsonl    everything that happened, see `record.journal`
  summary.json     the result; from the end of the run on
  policy_00.json   present hypers and shaping of member 0
  policy_00/       TensorBoard events of member 0
  population/      TensorBoard events of the population
  checkpoints/     weights: policy_00.safetensors at the end, at_FRAMES/policy_00.safetensors during the run
  logs/            what actors, learners and environments print: actor_0.log, learner_0.log; stacks-TIME.txt
  report/          the output of `pbt-rl report`
  .lock            held while a process writes the run, see `record.lock`
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.pbt.hypers import SHAPING, Values

_DRAFT = re.compile(r"\.(config|summary|policy_\d+)\.json\.\d+")
"""Name of a file that `write_whole` has not finished."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of the files of one run, which need not exist, and writers of its small JSON files."""

    path: Path

    @property
    def config(self) -> Path:
        """The config, as `to_json` returns it."""
        return self.path / "config.json"

    @property
    def journal(self) -> Path:
        """The events."""
        return self.path / "journal.jsonl"

    @property
    def summary(self) -> Path:
        """The result."""
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of weights."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Folder of what the processes print."""
        return self.path / "logs"

    @property
    def population_events(self) -> Path:
        """Folder of the population's TensorBoard events."""
        return self.path / "population"

    def member_events(self, member: int) -> Path:
        """Folder of a member's TensorBoard events."""
        return self.path / _policy(member)

    def values(self, member: int) -> Path:
        """Present hypers and shaping of a member."""
        return self.path / f"{_policy(member)}.json"

    def weights(self, member: int, at_frames: int | None = None) -> Path:
        """Weights of a member: those of the run's end, or those kept when each member had `at_frames` frames."""
        folder = self.checkpoints if at_frames is None else self.checkpoints / f"at_{at_frames}"
        return folder / f"{_policy(member)}.safetensors"

    def saved_members(self, at_frames: int | None = None) -> list[int]:
        """Ids of the members whose weights are there, in order."""
        folder = self.weights(0, at_frames).parent
        return sorted(int(p.stem.removeprefix("policy_")) for p in folder.glob("policy_*.safetensors"))

    def snapshots(self) -> list[int]:
        """Frames at which weights were kept during the run, in order."""
        return sorted(int(p.name.removeprefix("at_")) for p in self.checkpoints.glob("at_*"))

    def write_values(self, member: int, generation: int, values: Values) -> None:
        """Write the present hypers and shaping of a member, for people. Raises OSError."""
        content = {
            "member": member,
            "generation": generation,
            "hypers": {k: v for k, v in values.items() if not k.startswith(SHAPING)},
            "shaping": {k.removeprefix(SHAPING): v for k, v in values.items() if k.startswith(SHAPING)},
        }
        write_whole(self.values(member), json.dumps(content, indent=2) + "\n", sync=False)

    def write_config(self, config: Config) -> None:
        """Write the config. Raises OSError."""
        write_whole(self.config, json.dumps(to_json(config), indent=2) + "\n")

    def remove_drafts(self) -> None:
        """Remove the files that a killed process had begun to write; only for the process that writes the run.

        Raises OSError.
        """
        for path in self.path.iterdir():
            if _DRAFT.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def write_summary(self, content: Mapping[str, Any]) -> None:
        """Write the result. NaN and infinities are written as null. Raises OSError."""
        write_whole(self.summary, json.dumps(_finite(dict(content)), indent=2, allow_nan=False) + "\n")


def write_whole(path: Path, text: str, *, sync: bool = True) -> None:
    """Write a file in one piece: a reader finds the old one or the whole new one.

    sync: wait for the disk, so that this holds after a power cut too. Raises OSError; then the old one is there, and no
    half-written file is left.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def run_name(config: Config) -> str:
    """Return the name of the run; without one, it is made from the environment and the time."""
    made = f"{config.env.replace('/', '-').replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    return config.name or made


def to_json(config: Config) -> dict[str, Any]:
    """Return a config as JSON types; `config_from_json` reads it back."""
    data = dataclasses.asdict(config)
    data["out"] = str(config.out)
    data["pbt"]["tune"] = list(config.pbt.tune)
    return data


def config_from_json(data: dict[str, Any]) -> Config:
    """Rebuild the config of a run. Raises ConfigError for anything that is not one."""
    return _rebuild(Config, data)  # type: ignore[no-any-return]  # it builds the class that it is given


def _rebuild(kind: type[Any], data: dict[str, Any]) -> Any:
    known = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(data.keys() - known.keys())
    if unknown:
        raise ConfigError(
            f"config.json has unknown fields: {', '.join(unknown)}; was it written by another version?"
        )
    values: dict[str, Any] = {}
    for name, value in data.items():
        default = known[name].default_factory
        if isinstance(value, dict) and isinstance(default, type):
            values[name] = _rebuild(default, value)
        elif isinstance(value, list):
            values[name] = tuple(value)
        else:
            values[name] = Path(value) if name == "out" else value
    return kind(**values)


def _policy(member: int) -> str:
    return f"policy_{member:02d}"


def _finite(value: Any) -> Any:
    """Return the value with None for every NaN and infinity, which JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
