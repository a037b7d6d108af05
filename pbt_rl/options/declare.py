"""Declaration of options, and the table of all options.

`option` declares an option as a field of a frozen dataclass. The docstring below the field is the help text. An option
group is a field whose value is another dataclass of options. Parser, help and checks use the table. A check that
compares several options is in `__post_init__` of their dataclass.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, reduce
from textwrap import dedent
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")


class Declared(TypedDict, total=False):
    """Metadata of an option. Each key is optional, and missing flags count as False."""

    at_least: float
    """Smallest allowed number. at_least, above, at_most and below apply to a number, or to each number of a tuple."""
    above: float
    at_most: float
    below: float
    distinct: bool
    """True if the numbers of a tuple must be distinct. Only checked with one of the four limits above."""
    empty: bool
    """True if a tuple with one of the four limits above may be empty. A tuple without limits may be empty unless `test`
    forbids this."""
    off: str
    """Word for the value `at_most`, if this value means "no limit". Example: "off"."""
    zero: str
    """Special meaning of 0. Examples: "planned", "no limit"."""
    choices: Callable[[], tuple[str, ...]]
    """Returns the allowed names."""
    texts: Callable[[], Mapping[str, str]]
    """Returns choice -> help text. These help texts replace `{each}` in the docstring of the field."""
    custom: str
    """Form of a custom object that is allowed in addition to the choices. Example: "module:factory"."""
    test: Callable[[Any], bool]
    """Returns True for allowed values. Needed only if the other metadata cannot express the allowed values."""
    remedy: str
    """Description of the values that `test` accepts."""
    common: bool
    """True if plain `pbt-rl train --help` shows the option. Plain `--help-all` shows all options."""
    machine: bool
    """True for an option about the machine. In a run of another author, the option's value is only used if the user
    trusts the run."""
    may_change: bool
    """True if the option (or each option of the group, except those with False) may change when a run is resumed."""
    is_external: Callable[[str], bool]
    """Returns True for a value that names code or hosts outside the package. The user must trust the value's author."""
    positional: bool
    """True for an argument without an option name."""
    repeated: bool
    """True for an option that is given once per value."""
    pairs: bool
    """True for a repeated option with values NAME=VALUE. A value on the command line replaces a value with the same
    NAME in --config or --recipe."""
    by_name: bool
    """True if an entry NAME=NUMBER of an option with `pairs` may also be written as --OPTION.NAME NUMBER."""
    bounds: tuple[float, float]
    """Default bounds of the mutations of a hyper (see `hyper` in `algos/hypers.py`)."""
    scale: str
    """Scale of a hyper. With "one_minus", a mutation multiplies 1 - value. With "log", "linear" and "integer", a
    mutation multiplies the value.
    """
    tuned: bool
    """True if PBT tunes the hyper by default."""


def option(default: Any = MISSING, **metadata: Unpack[Declared]) -> Any:
    """Declare an option as a dataclass field. Without `default`, the option is required."""
    assert ("test" in metadata) == ("remedy" in metadata), (
        "`test` needs `remedy`, the description of accepted values"
    )
    return field(default=default, metadata=metadata)


def names_module(value: str) -> bool:
    """True if the value of an option contains a colon, and may therefore have the form `module:object`."""
    return ":" in value


def names_object(text: str) -> bool:
    """True if a text has the form module:object, with an absolute module name."""
    module, _, name = text.partition(":")
    return bool(module and name) and not module.startswith(".")


@dataclass(frozen=True)
class Option:
    """Entry in the table of options."""

    path: tuple[str, ...]
    """Field names from the outermost dataclass to the option."""
    hint: Any
    """Type annotation."""
    metadata: Mapping[str, Any]
    """Keys and values of `Declared`. An option gets `may_change` from its group, unless the option has this key."""
    owner: type
    """Dataclass of options that has the field. The field may be inherited, or added by `with_fields`."""
    default: Any
    """Default value. `MISSING` if the option is required."""

    @property
    def help(self) -> str:
        """Help text: docstring below the field, on one line. The help texts of the choices replace `{each}`."""
        text = field_docs(self.owner).get(self.path[-1], "")
        return text.replace("{each}", _each(self.metadata["texts"]())) if "texts" in self.metadata else text

    @property
    def name(self) -> str:
        """Dotted name on the command line. Example: `pbt.period-frames`."""
        return ".".join(self.path).replace("_", "-")

    @property
    def field(self) -> str:
        """Dotted name in files and Python. Example: `pbt.period_frames`."""
        return ".".join(self.path)

    @property
    def scalar(self) -> Any:
        """Type of one value: X for `X | None` and for `tuple[X, ...]`."""
        several = isinstance(self.hint, UnionType) or get_origin(self.hint) is tuple
        return get_args(self.hint)[0] if several else self.hint

    @property
    def is_positional(self) -> bool:
        """True for an argument without an option name."""
        return "positional" in self.metadata

    @property
    def holds_pairs(self) -> bool:
        """True for an option whose values are NAME=VALUE."""
        return "pairs" in self.metadata

    @property
    def is_repeated(self) -> bool:
        """True if the option is given once per value."""
        return self.holds_pairs or "repeated" in self.metadata

    @property
    def is_list(self) -> bool:
        """True if any number of values may follow the option."""
        return get_origin(self.hint) is tuple and not self.is_repeated

    @property
    def is_external(self) -> Callable[[str], bool] | None:
        """Function that returns True for a value that names code or hosts outside the package.

        None: no value of the option names code or hosts.
        """
        found: Callable[[str], bool] | None = self.metadata.get("is_external")
        return found or (names_module if "custom" in self.metadata else None)

    def of(self, options: Any) -> Any:
        """Return the value of this option. options: object of the dataclass from which the table was built."""
        return reduce(getattr, self.path, options)


def _each(texts: Mapping[str, str]) -> str:
    """Join the help texts of names as "`name`: text". Names with equal texts are merged."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(f"`{name}`")
    return " ".join(f"{', '.join(same)}: {text}" for text, same in names.items())


def table(options: Any, **groups: type) -> Mapping[str, Option]:
    """Build the table of a dataclass of options and its groups: dotted name on the command line -> option.

    options: dataclass, or object of a dataclass. The class of a group in an object may be a subclass of the declared
    class.
    groups: field name -> subclass that replaces the declared class of a group. Used only if `options` is a dataclass.
    """
    if isinstance(options, type):
        return _table(options, tuple(groups.items()))
    values = ((f.name, getattr(options, f.name)) for f in fields(options))
    kind: type = type(options)
    return _table(kind, tuple((name, type(value)) for name, value in values if is_dataclass(value)))


@cache
def _table(kind: type, kinds: tuple[tuple[str, type], ...]) -> Mapping[str, Option]:
    """Build the table of a dataclass. kinds: (field name, class that replaces the declared class) of groups."""
    hints, groups = get_type_hints(kind), dict(kinds)
    found: list[Option] = []
    for f in fields(kind):
        group = groups.get(f.name, f.default_factory)
        if isinstance(group, type) and is_dataclass(group):
            added = {"may_change": True} if f.metadata.get("may_change") else {}
            found += [
                replace(inner, path=(f.name, *inner.path), metadata={**added, **inner.metadata})
                for inner in _table(group, ()).values()
            ]
        else:
            default = f.default if f.default_factory is MISSING else f.default_factory()
            found.append(Option((f.name,), hints[f.name], f.metadata, kind, default))
    return MappingProxyType({option.name: option for option in found})


def values_of(options: Any) -> dict[str, Any]:
    """Return the value of each option: dotted name -> value."""
    return {name: one.of(options) for name, one in table(options).items()}


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass and its bases: field name -> docstring on one line."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        found |= {
            f.name: field_docs(f.metadata["owner"]).get(f.name, "")
            for f in fields(base)
            if "owner" in f.metadata
        }
        try:
            (body,) = ast.parse(dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # a generated class, or a class without a source file
            continue
        assert isinstance(body, ast.ClassDef)
        for above, below in zip(body.body, body.body[1:], strict=False):
            match above, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def with_fields(*kinds: type) -> Callable[[type[T]], type[T]]:
    """Return a decorator that adds the options of other dataclasses to a class.

    Put `@dataclass` above the decorator.
    """

    def add(kind: type[T]) -> type[T]:
        for other in kinds:
            hints = get_type_hints(other)
            for f in fields(other):
                declared = field(default=f.default, metadata={**f.metadata, "owner": other})
                _add(kind, f.name, hints[f.name], declared)
        return kind

    return add


def with_groups(groups: Mapping[str, type]) -> Callable[[type[T]], type[T]]:
    """Return a decorator that adds option groups (name -> dataclass) to a class.

    Put `@dataclass` above the decorator.
    """

    def add(kind: type[T]) -> type[T]:
        for name, group in groups.items():
            _add(kind, name, group, field(default_factory=group))
        return kind

    return add


def _add(kind: type, name: str, hint: Any, declared: Any) -> None:
    own = inspect.get_annotations(kind)
    assert name not in own, f"two owners declare the option {name}"
    kind.__annotations__ = {**own, name: hint}
    setattr(kind, name, declared)


def build(kind: type[D], values: Mapping[str, object], **groups: type) -> D:
    """Build an object of the dataclass `kind` from dotted fields: {"learner.rollout": 32, ...}.

    groups: field name -> dataclass that replaces the declared class of this option group.
    """
    flat, nested = _nested(values)
    kinds: dict[str, Any] = {f.name: groups.get(f.name, f.default_factory) for f in fields(kind)}
    parts = {name: build(kinds[name], nested.get(name, {})) for name in {*nested, *groups}}
    return kind(**flat, **parts)


def changed(options: D, values: Mapping[str, object]) -> D:
    """Return options with new values at dotted fields: {"learner.rollout": 32, ...}.

    New NAME=VALUE entries replace entries with equal names. The other entries are kept.
    """
    known = {one.field: one for one in table(options).values()}
    pairs = {name: value for name, value in values.items() if known[name].holds_pairs}
    entries = {name: merged(known[name].of(options), value) for name, value in pairs.items()}
    flat, nested = _nested({**values, **entries})
    parts = {head: replace(getattr(options, head), **inner) for head, inner in nested.items()}
    return replace(options, **flat, **parts)


def as_base(kind: type[D], options: Any, **others: object) -> D:
    """Convert options to a base class of their class. others: values that replace the values of `options`."""
    return kind(**{f.name: getattr(options, f.name) for f in fields(kind)} | others)


def merged(entries: Sequence[str], stronger: Any) -> tuple[str, ...]:
    """Merge NAME=VALUE entries. Entries of `stronger` replace entries with equal names."""
    names = {entry.partition("=")[0] for entry in stronger}
    return (*(entry for entry in entries if entry.partition("=")[0] not in names), *stronger)


def _nested(values: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split a mapping with dotted names into the values without a group, and the values of each group."""
    flat: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            flat[head] = value
    return flat, nested
