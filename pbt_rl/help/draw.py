"""Draw the help of a command with many options: the usual ones, those of what the command line names, or all.

tyro draws a dataclass. So a dataclass is made that has only the options to show, each with its docstring, its
allowed values and its default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from typing import Annotated, Any, Protocol

import tyro

from pbt_rl.algos import registry as algorithms
from pbt_rl.cli.parse import value_of
from pbt_rl.config import hypers_of, load_algorithm
from pbt_rl.envs.registry import FAMILIES, SHORT_NAMES
from pbt_rl.options import Option, allowed, table
from pbt_rl.pbt.registry import CONTROLLERS
from pbt_rl.pbt.rules import EXPLOIT_RULES, EXPLORE_RULES, READY_RULES

MORE = """\
These are the usual options. For more of them:
  --env X --help            also the options of that family of environments
  --algo X --help           also the hypers that only that algorithm has
  --controller X --help     also those of that controller; likewise --pbt.exploit X, --pbt.explore X, --pbt.ready X
  --help-all                all options; all work, shown or not
"""


class _Entry(Protocol):
    @property
    def options(self) -> tuple[str, ...]: ...


REGISTRIES: dict[str, Mapping[str, _Entry]] = {
    "controller": CONTROLLERS,
    "pbt.exploit": EXPLOIT_RULES,
    "pbt.explore": EXPLORE_RULES,
    "pbt.ready": READY_RULES,
}
"""By the option that names an entry."""
SETTINGS = {"pbt.exploit": "pbt.exploit_option", "pbt.explore": "pbt.explore_option"}
"""Option that names a rule, of the user's own too -> option that sets fields of the rule."""
NAMING = ("env", "algo", *REGISTRIES)
"""Options whose value brings options of its own."""


def related(chosen: Mapping[str, str | None]) -> frozenset[str]:
    """Return names of options, and of groups of them, that belong to the values of NAMING."""
    family = _family(chosen["env"] or "")
    names = set(FAMILIES[family].option_groups if family in FAMILIES else ())
    names |= {f"hypers.{name}" for name in own_hypers(chosen["algo"] or "")}
    for option, registry in REGISTRIES.items():
        value = chosen[option]
        if value is not None:
            names |= {*(registry[value].options if value in registry else ()), SETTINGS.get(option, "")}
    return frozenset(names - {""})


def own_hypers(algo: str) -> tuple[str, ...]:
    """Return the names of the hypers that only this algorithm has. Raises ConfigError as `hypers_of`."""
    entry = algorithms.ALGORITHMS.get(algo)
    kind = entry.hypers if entry is not None else load_algorithm(algo).hypers if ":" in algo else None
    return () if kind is None else tuple(f.name for f in fields(kind))


def unread_hypers(algo: str) -> frozenset[str]:
    """Return the options of hypers that an algorithm does not read; it is imported for that. Raises ConfigError."""
    read = load_algorithm(algo).reads(use_vtrace=True)
    return frozenset(f"hypers.{one.name}" for one in fields(hypers_of(algo)) if one.name not in read)


def _family(env: str) -> str:
    return str(SHORT_NAMES.get(env, env)).partition("/")[0]


def print_help(command: Any, prog: str, arguments: list[str]) -> None:
    """Print the options of a command, with its values as defaults. A field that is "" and has no default is required.

    --help: the common options, and those that belong to what the arguments name. --help-all: every option.
    """
    everything = "--help-all" in arguments
    named = {name: value_of(arguments, f"--{name}") for name in NAMING}
    extra, unread = related(named), frozenset() if named["algo"] is None else unread_hypers(named["algo"])
    shown = [
        option
        for option in table(command).values()
        if (everything or option.metadata.get("common") or belongs(option.field, extra))
        and option.field not in unread
    ]
    try:
        tyro.cli(_drawn(command, shown), prog=prog, args=["--help"])
    except SystemExit:
        if not everything:
            print(MORE, end="")


def belongs(name: str, extra: Collection[str]) -> bool:
    """Whether an option is among `extra`, which has dotted names and names of groups."""
    return name in extra or name.partition(".")[0] in extra


def _drawn(command: Any, options: Sequence[Option]) -> type:
    """Make a dataclass of these options."""
    columns: dict[str, tuple[str, Any, Any]] = {}
    for option in options:
        head, *inner = option.path
        if not inner:
            columns[head] = _column(option, option.of(command))
        elif head not in columns:
            kind = type(getattr(command, head))
            of_group = [_column(o, o.of(command)) for o in options if o.path[0] == head]
            group = make_dataclass(kind.__name__, of_group, kw_only=True)
            group.__doc__ = kind.__doc__
            columns[head] = (head, group, field(default_factory=group))
    drawn = make_dataclass(type(command).__name__, columns.values(), kw_only=True)
    drawn.__doc__ = type(command).__doc__
    return drawn


def _column(option: Option, value: Any) -> tuple[str, Any, Any]:
    required = value == "" and option.default != ""
    drawn = tyro.conf.arg(
        help=option.help, help_behavior_hint=_hint(option.metadata, value), metavar=_metavar(option.metadata)
    )
    return option.path[-1], Annotated[option.hint, drawn], field() if required else field(default=value)


def _hint(metadata: Mapping[str, Any], value: object) -> Callable[[str], str] | None:
    """Allowed values beside the default; None leaves the hint to tyro, which shows names to choose from by itself."""
    text = "" if "choices" in metadata else allowed(metadata, value)
    if "bounds" in metadata:
        low, high = metadata["bounds"]
        scale = str(metadata["scale"]).replace("_", "-")
        text += f"; {'' if metadata['tuned'] else 'if '}tuned: prior and bounds {low:g} to {high:g}, {scale}"
    return (lambda default: f"({text}; default: {default})") if text else None


def _metavar(metadata: Mapping[str, Any]) -> str | None:
    if "choices" not in metadata:
        return None
    return (
        "{"
        + ",".join(metadata["choices"]())
        + "}"
        + (f"|{metadata['custom']}" if "custom" in metadata else "")
    )
