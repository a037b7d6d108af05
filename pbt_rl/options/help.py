"""Help of a command: options by group, with help text, allowed values and default."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from inspect import cleandoc
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin

from pbt_rl.options.declare import Option
from pbt_rl.options.values import allowed

COLUMN = 28
"""Largest column in which the help texts may start."""


class _Formatter(RawDescriptionHelpFormatter):
    """Formatter that keeps the lines of a command's docstring and does not break option names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=COLUMN)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)


def draw(command: type, options: Iterable[Option], value: Callable[[Option], Any], prog: str) -> None:
    """Print the help of a command and of `options`, and end the process (SystemExit).

    value: returns the default to print for an option.
    """
    shown = list(options)
    positional = [option.name.upper() for option in shown if option.is_positional]
    parser = ArgumentParser(
        usage=" ".join([prog, *positional, "[OPTIONS]"]),
        description=cleandoc(command.__doc__ or ""),
        formatter_class=_Formatter,
    )
    groups: dict[str, Any] = {}
    for option in shown:
        head = option.path[0] if option.path[1:] else ""
        if head not in groups:
            doc = cleandoc(option.owner.__doc__ or "")
            groups[head] = parser.add_argument_group(head, doc) if head else parser
        text = f"{option.help} ({_hint(option, value(option))})".replace("%", "%%")
        if option.is_positional:
            groups[head].add_argument(option.name, metavar=_metavar(option), help=text)
        elif option.hint is bool:
            path, dot, last = option.name.rpartition(".")
            names = f"--{option.name}", f"--{path}{dot}no-{last}"
            groups[head].add_argument(*names, action="store_true", help=text)
        else:
            groups[head].add_argument(f"--{option.name}", metavar=_metavar(option), help=text)
    parser.print_help()
    raise SystemExit(0)


def _hint(option: Option, value: Any) -> str:
    """Format the allowed values and the default of an option."""
    metadata = option.metadata
    limits = "" if "choices" in metadata else allowed(metadata, value)
    if "zero" in metadata:
        limits = f"0: {metadata['zero']}"
    if "bounds" in metadata:
        low, high = metadata["bounds"]
        scale = str(metadata["scale"]).replace("_", "-")
        limits += (
            f"; {'' if metadata['tuned'] else 'if '}tuned: prior and bounds {low:g} to {high:g}, {scale}"
        )
    if value is MISSING or (value == "" and option.default != ""):
        default = "required"
    elif option.is_repeated:
        default = "repeatable"
    else:
        default = f"default: {_shown(value)}"
    return f"{limits}; {default}" if limits else default


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "''"


def _metavar(option: Option) -> str:
    """Return the placeholder of an option's value."""
    if "choices" in option.metadata:
        names = ",".join(option.metadata["choices"]())
        return f"{{{names}}}" + (f"|{option.metadata['custom']}" if "custom" in option.metadata else "")
    hint = option.scalar
    if get_origin(hint) is Literal:
        return f"{{{','.join(get_args(hint))}}}"
    name = option.name.upper().removesuffix("S") if option.is_positional else hint.__name__.upper()
    return f"{name} [{name} ...]" if option.is_list else name
