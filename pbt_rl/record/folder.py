"""A run's folder, and its config as JSON."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError


def create_run_folder(config: Config) -> tuple[Config, Path]:
    """Make the folder of a run and write its config. Raises ConfigError where that cannot be done.

    Returns the config with its name filled in.
    """
    name = run_name(config)
    config = dataclasses.replace(config, name=name)
    folder = config.out / name
    if folder.exists():
        if not config.overwrite:
            raise ConfigError(
                f"--name {name}: {folder} exists already; choose another name or add --overwrite"
            )
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"--overwrite: {folder} is not a run (it has no config.json); remove it yourself"
            )
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(to_json(config), indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--out {config.out} cannot be written: {error.strerror or error}") from error
    return config, folder


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
    return _rebuild(Config, data)  # type: ignore[no-any-return]


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
