"""Train from Python: `pbt_rl.train(env="gym/CartPole-v1", num_policies=4)` is `pbt-rl train` without the shell."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pbt_rl.config import Config
from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.given.tables import with_start_values
from pbt_rl.given.values import checked
from pbt_rl.recipes import algorithm_recipe, apply_recipe, environment_recipe


@dataclass(frozen=True)
class Result:
    """A run that has ended."""

    folder: Path
    """Folder of the run: config, journal, weights, TensorBoard files."""
    summary: dict[str, Any]
    """Content of `summary.json`: how the run ended, the best member, and every member."""


def train(config: Config | None = None, /, **options: Any) -> Result:
    """Train a population and return the run's folder and summary.

    config: used as it is. options: fields of Config instead, over the recipe of the environment as on the command line.
    Nested options are mappings (`learner={"batch": 512}`) or have dotted names (`**{"learner.batch": 512}`).

    Call it in the main thread, and in a script under `if __name__ == "__main__":`. Raises ConfigError or EnvSetupError
    before anything is started, RunFailed if the run cannot go on or is ended by a signal.
    """
    if config is None:
        config = make_config(**options)
    elif options:
        raise ConfigError(f"train takes a Config or options, not both: {', '.join(options)}")
    from pbt_rl.record.folder import run_name  # noqa: PLC0415 - the supervisor imports torch
    from pbt_rl.run.train import train as supervise  # noqa: PLC0415

    config = replace(config, name=run_name(config))
    code = supervise(config)
    folder = config.out / str(config.name)
    if code:
        raise RunFailed(f"the run in {folder} was ended by signal {code - 128}")
    try:
        return Result(folder, json.loads((folder / "summary.json").read_text()))
    except OSError as error:
        raise RunFailed(f"the run in {folder} has ended, but has no summary: {error.strerror}") from error


def make_config(**options: Any) -> Config:
    """Return the config of these options, over the recipe of the environment. Raises ConfigError or EnvSetupError."""
    values = checked(options)
    env = values.get("env")
    if env is None:
        raise ConfigError("env is missing: give it as family/name, such as atari/pong, or module:factory")
    start = Config(env=env)
    recipe = environment_recipe(env, values.get("env_option", ()))
    over = algorithm_recipe(str(values.get("algo", start.algo)), recipe)
    config: Config = apply_recipe(start, {**recipe, **over, **values})
    return with_start_values(config)
