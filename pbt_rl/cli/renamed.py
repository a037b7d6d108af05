"""Options of older versions: each is refused with its new name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from pbt_rl.errors import ConfigError

RENAMED = {
    "--resident": "--slots",
    "--turn-frames": "--slot-frames",
    "--replay.run": "--schedule.run",
    "--replay.member": "--schedule.member",
    "--replay.hold-final": "--schedule.hold-final",
    "--replay.no-hold-final": "--schedule.no-hold-final",
}
RENAMED_VALUES = {("--controller", "replay"): "schedule"}


def refuse_renamed(arguments: Sequence[str]) -> None:
    """Raise ConfigError that gives the new name for an option, or the value of an option, of an older version."""
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        written, equals, value = argument.partition("=")
        name = written.replace("_", "-")
        if name in RENAMED:
            raise ConfigError(f"{written} is now {RENAMED[name]}")
        old = value if equals else following
        if (name, old) in RENAMED_VALUES:
            raise ConfigError(f"{name} {old} is now {name} {RENAMED_VALUES[name, old]}")
