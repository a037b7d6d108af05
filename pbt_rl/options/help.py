"""Help of a command, drawn by tyro.

tyro draws a dataclass. So one is made that has only the options to show, each with its docstring, its allowed values
and its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, make_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from pbt_rl.options.declare import Option
from pbt_rl.options.values import allowed


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
    required = required or (value == () and option.is_positional)
    hint: Any = option.hint
    if option.is_repeated:
        hint = _mark(tyro.conf.UseAppendAction, hint)
    if option.is_positional:
        hint = _mark(tyro.conf.Positional, hint)
    return option.path[-1], Annotated[hint, drawn], field() if required else field(default=value)


def _mark(mark: Any, hint: Any) -> Any:
    return mark[hint]


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
    one, several = option.hint, get_origin(option.hint) is tuple
    if isinstance(one, UnionType) or several:
        one = get_args(one)[0]
    if get_origin(one) is Literal or one is bool:
        return None
    name = option.name.upper().removesuffix("S") if option.is_positional else one.__name__.upper()
    return f"{name} [{name} ...]" if option.is_list else name
