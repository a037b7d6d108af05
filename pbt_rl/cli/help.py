"""Draw the help of a command with many options: the usual ones, those of what the command line names, or all.

tyro draws a dataclass. So a dataclass is made that has only the options to show, each with its docstring, its
allowed values and its default.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields, is_dataclass, make_dataclass
from textwrap import dedent
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

import tyro

from pbt_rl.cli.parse import value_of
from pbt_rl.cli.related import NAMING, related
from pbt_rl.options import allowed, declared

MORE = """\
These are the usual options. For more of them:
  --env X --help            also the options of that family of environments
  --controller X --help     also those of that controller; likewise --pbt.exploit X, --pbt.explore X, --pbt.ready X
  --help-all                all options; all work, shown or not
"""


def print_help(command: Any, prog: str, arguments: list[str]) -> None:
    """Print the options of a command, with its values as defaults. A field that is "" and has no default is required.

    --help: the common options, and those that belong to what the arguments name. --help-all: every option.
    """
    everything = "--help-all" in arguments
    extra = related({name: value_of(arguments, f"--{name}") for name in NAMING})

    def shown(name: str, common: bool) -> bool:
        return everything or common or belongs(name, extra)

    view = _view(command, "", shown)
    assert view is not None, "a command has options"
    try:
        tyro.cli(view, prog=prog, args=["--help"])
    except SystemExit:
        if not everything:
            print(MORE, end="")


def belongs(name: str, extra: Collection[str]) -> bool:
    """Whether an option is among `extra`, which has dotted names and names of groups."""
    return name in extra or name.partition(".")[0] in extra


def _view(
    options: Any,
    prefix: str,
    shown: Callable[[str, bool], bool],
    group: Mapping[str, Any] = MappingProxyType({}),
) -> type | None:
    """Make a dataclass of the options to show; None if there is none. group: metadata of the field that holds them."""
    kind = type(options)
    hints, docs = get_type_hints(kind, include_extras=True), field_docs(kind)
    columns: list[tuple[str, Any, Any]] = []
    for f in fields(options):
        value, name = getattr(options, f.name), prefix + f.name
        if is_dataclass(value):
            inner = _view(value, f"{name}.", shown, f.metadata)
            if inner is not None:
                columns.append((f.name, inner, field(default_factory=inner)))
        elif shown(name, bool(f.metadata.get("common"))):
            required, metadata = value == "" and f.default != "", declared(f, group)
            drawn = tyro.conf.arg(
                help=docs.get(f.name, ""),
                help_behavior_hint=_hint(metadata, value),
                metavar=_metavar(metadata),
            )
            columns.append(
                (f.name, Annotated[hints[f.name], drawn], field() if required else field(default=value))
            )
    if not columns:
        return None
    view = make_dataclass(kind.__name__, columns, kw_only=True)
    view.__doc__ = kind.__doc__
    return view


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


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass and of its bases, on one line."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        (body,) = ast.parse(dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for above, below in zip(body.body, body.body[1:], strict=False):
            match above, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found
