"""`pbt-rl set`: change options of a run, or values of its members, while it trains."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from pbt_rl.cli.parse import parse
from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.given.names import spelt
from pbt_rl.given.values import number
from pbt_rl.options import table, walk
from pbt_rl.pbt.hypers import OFF, SHAPING
from pbt_rl.record.folder import to_json
from pbt_rl.record.requests import Request, ask
from pbt_rl.record.trust import read_config

PROG = "pbt-rl set"
MEMBER = "--member"
USAGE = """usage: pbt-rl set RUN NAME=VALUE... [--member N]...

Change a run that trains, from another terminal. Between two comparisons it takes over all that is given, or nothing;
it notes that in its journal and is saved at once. `pbt-rl audit` decides such a run again, and `pbt-rl resume` goes on
with the new options.

NAME is an option of `pbt-rl train`:
  {live}
  or pbt.NAME (but for {fixed})
or a value of members, such as learning_rate or shaping.NAME: of all that train, or of member N (--member may be
repeated). A member with another value begins a generation, as after a mutation.

  pbt-rl set runs/pong train-for-seconds=7200 save-every-seconds=60
  pbt-rl set runs/pong pbt.mutation-rate=0.3 "pbt.tune=learning_rate gamma"
  pbt-rl set runs/pong learning_rate=1e-4 --member 2
"""


def run(arguments: list[str]) -> int:
    """Ask the run, and print what has changed."""
    if not arguments or {"-h", "--help"} & set(arguments):
        from pbt_rl.run.live import FIXED, LIVE

        print(USAGE.format(live=", ".join(LIVE), fixed=", ".join(FIXED)), end="")
        return 0 if arguments else 2
    folder, members, pairs = _parted(arguments)
    config = read_config(folder)
    if not pairs:
        raise ConfigError(f"nothing to change is given: {PROG} {folder} NAME=VALUE; {PROG} --help")
    options, values = {}, {}
    for name, text in pairs:
        value = _value_name(name, config)
        if value is None:
            options[name] = text
        else:
            values[value] = _number(name, text)
    if members and not values:
        raise ConfigError(f"{MEMBER} goes with a value of members, such as learning_rate=1e-4")
    for line in ask(folder, Request(_typed(config, options), values, members or None)):
        print(line)
    return 0


def _parted(arguments: list[str]) -> tuple[Path, tuple[int, ...], list[tuple[str, str]]]:
    """Return the run, the members and the pairs of name and text. Raises ConfigError."""
    members: list[int] = []
    free: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.partition("=")
        if name != MEMBER:
            free.append(word)
            continue
        text = text if equals else rest.pop(0) if rest else ""
        if not text.isdecimal() or len(text) > 9:
            raise ConfigError(f"{MEMBER} {text} cannot be used: give the number of a member")
        members.append(int(text))
    if not free or "=" in free[0]:
        raise ConfigError(f"the folder of a run comes first: {PROG} RUN NAME=VALUE")
    pairs = []
    for word in free[1:]:
        name, equals, text = word.partition("=")
        if not equals or not name.strip("-"):
            raise ConfigError(f"{word!r} cannot be used: write NAME=VALUE; {PROG} --help")
        pairs.append((name.lstrip("-"), text))
    return Path(free[0]), tuple(members), pairs


def _value_name(name: str, config: Config) -> str | None:
    """Return the name of a value of members, if it is one: a hyper, or shaping of whatever environment."""
    hyper = name.removeprefix("hypers.").replace("-", "_")
    if hyper in {option.field for option in table(config.hypers).values()}:
        return hyper
    return name if name.startswith(SHAPING) else None


def _number(name: str, text: str) -> float:
    if text == "off":
        return OFF
    try:
        return number(text)
    except ValueError as remedy:
        raise ConfigError(f"{name}={text} cannot be used: give {remedy}") from None


def _typed(config: Config, options: dict[str, str]) -> dict[str, Any]:
    """Return the options by dotted name, as JSON types. Raises ConfigError for what no config takes."""
    if not options:
        return {}
    words = [word for name, text in options.items() for word in (f"--{name}", *_split(name, text))]
    start: Any = config
    changed = parse(Config, PROG, words, start)
    asked = {spelt(name) for name in options}
    data, before = to_json(changed), {name: value for name, _, value in walk(config)}
    found = {  # a switch may be asked for as `no-NAME`
        name: _inner(data, name) for name, _, value in walk(changed) if name in asked or value != before[name]
    }
    return {name: json.loads(json.dumps(value)) for name, value in found.items()}


def _split(name: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{name}={text} cannot be used: {error}") from None


def _inner(data: Any, name: str) -> Any:
    for part in name.replace("-", "_").split("."):
        data = data[part]
    return data
