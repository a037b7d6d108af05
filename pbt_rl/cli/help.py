"""Draw the help of a command with many options: the usual ones, those of what the command line names, or all.

tyro draws a dataclass. So a dataclass is made that has only the options to show, each with its docstring, its
allowed values and its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields, make_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from pbt_rl.algos import registry as algorithms
from pbt_rl.cli.parse import POSITIONAL, is_repeated, value_of
from pbt_rl.config import hypers_of, load_algorithm
from pbt_rl.envs.registry import FAMILIES, SHORT_NAMES
from pbt_rl.options import Option, allowed, table
from pbt_rl.registry import CONTROLLERS, EXPLOIT_RULES, EXPLORE_RULES, READY_RULES

MORE = """\
These are the usual options. For more of them:
  --env X --help            also the options of that family of environments
  --algo X --help           also the hypers that only that algorithm has
  --controller X --help     also those of that controller; likewise --pbt.exploit X, --pbt.explore X, --pbt.ready X
  --help-all                all options; all work, shown or not
"""


RULES: dict[str, Mapping[str, Any]] = {
    "controller": CONTROLLERS,
    "pbt.exploit": EXPLOIT_RULES,
    "pbt.explore": EXPLORE_RULES,
    "pbt.ready": READY_RULES,
}
"""Option that names an entry, whose `options` belong to it -> the entries."""


def related(arguments: Sequence[str]) -> set[str]:
    """Return names of options, and of groups of them, that belong to what the arguments name. Raises ConfigError."""
    env, algo = value_of(arguments, "--env") or "", value_of(arguments, "--algo") or ""
    family = str(SHORT_NAMES.get(env, env)).partition("/")[0]
    names = set(FAMILIES[family].option_groups if family in FAMILIES else ())
    entry = algorithms.ALGORITHMS.get(algo)
    own = entry.hypers if entry is not None else load_algorithm(algo).hypers if ":" in algo else None
    names |= {f"hypers.{f.name}" for f in (() if own is None else fields(own))}
    for option, entries in RULES.items():
        value = value_of(arguments, f"--{option}")
        if value is None:
            continue
        names |= set(entries[value].options if value in entries else ())
        if option in ("pbt.exploit", "pbt.explore"):
            names.add(f"{option}_option")
    return names


def unread_hypers(algo: str | None) -> frozenset[str]:
    """Return the options of hypers that an algorithm does not read; it is imported for that. Raises ConfigError."""
    if algo is None:
        return frozenset()
    read = load_algorithm(algo).reads(use_vtrace=True)
    return frozenset(f"hypers.{one.name}" for one in fields(hypers_of(algo)) if one.name not in read)


def print_help(command: Any, prog: str, arguments: list[str]) -> None:
    """Print the options of a command, with its values as defaults. A field that is "" and has no default is required.

    --help: the common options, and those that belong to what the arguments name. --help-all: every option.
    """
    everything = "--help-all" in arguments
    extra, unread = related(arguments), unread_hypers(value_of(arguments, "--algo"))
    shown = [
        option
        for option in table(command).values()
        if (everything or option.metadata.get("common") or extra & {option.field, option.path[0]})
        and option.field not in unread
    ]
    try:
        draw(type(command), shown, lambda option: option.of(command), prog)
    except SystemExit:
        if not everything:
            print(MORE, end="")


def draw(command: type, options: Iterable[Option], value: Callable[[Option], Any], prog: str) -> None:
    """Print the help of these options of a command. value: the default to show. Raises SystemExit, as tyro does."""
    columns: dict[str, tuple[str, Any, Any]] = {}
    groups: dict[str, list[Option]] = {}
    for option in options:
        head, *inner = option.path
        if inner:
            groups.setdefault(head, []).append(option)
        columns[head] = ("", None, None) if inner else _column(option, value(option))
    for head, of_group in groups.items():
        kind = of_group[0].owner
        group = make_dataclass(kind.__name__, [_column(o, value(o)) for o in of_group], kw_only=True)
        group.__doc__ = kind.__doc__
        columns[head] = (head, group, field(default_factory=group))
    drawn = make_dataclass(command.__name__, columns.values(), kw_only=True)
    drawn.__doc__ = command.__doc__
    tyro.cli(drawn, prog=prog, args=["--help"])


def _column(option: Option, value: Any) -> tuple[str, Any, Any]:
    required = value is MISSING or (value == "" and option.default != "")
    drawn = tyro.conf.arg(
        help=option.help, help_behavior_hint=_hint(option.metadata, value), metavar=_metavar(option)
    )
    required = required or (value == () and POSITIONAL in option.marks)
    return option.path[-1], Annotated[option.hint, drawn], field() if required else field(default=value)


def _hint(metadata: Mapping[str, Any], value: object) -> Callable[[str], str] | None:
    """Allowed values beside the default; None leaves the hint to tyro, which shows names to choose from by itself."""
    text = "" if "choices" in metadata else allowed(metadata, value)
    if "zero" in metadata:
        text = f"0: {metadata['zero']}"
    if "bounds" in metadata:
        low, high = metadata["bounds"]
        scale = str(metadata["scale"]).replace("_", "-")
        text += f"; {'' if metadata['tuned'] else 'if '}tuned: prior and bounds {low:g} to {high:g}, {scale}"
    if value is None and not text:  # its help says what that means
        return lambda _: "(default: None)"
    number = f"{value:g}" if isinstance(value, float) else ""
    return (lambda default: f"({text}; default: {number or default})") if text else None


def _metavar(option: Option) -> str | None:
    """Return what stands for the value; None leaves that to tyro."""
    if "choices" in option.metadata:
        names = ",".join(option.metadata["choices"]())
        return f"{{{names}}}" + (f"|{option.metadata['custom']}" if "custom" in option.metadata else "")
    one, several = option.bare, get_origin(option.bare) is tuple
    if isinstance(one, UnionType) or several:
        one = get_args(one)[0]
    if get_origin(one) is Literal or one is bool:
        return None
    name = option.name.upper().removesuffix("S") if POSITIONAL in option.marks else one.__name__.upper()
    return f"{name} [{name} ...]" if several and not is_repeated(option) else name
