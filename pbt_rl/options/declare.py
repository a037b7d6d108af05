"""Declaration of options, and the table of them.

An option is a field of a frozen dataclass that `option` declares; the docstring below the field is its help. A group of
options is a field with another such dataclass. All that reads options reads the table. Rules between several options
are functions of the class that holds them all.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, reduce
from textwrap import dedent
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")


class Declared(TypedDict, total=False):
    """What the metadata of an option may hold."""

    at_least: float
    """at_least, above, at_most, below: bounds of a number, or of each number of a tuple."""
    above: float
    at_most: float
    below: float
    distinct: bool
    """The numbers of a tuple differ."""
    empty: bool
    """A tuple may have no number."""
    off: str
    """Name of the upper bound if it stands for "no limit" ("off")."""
    zero: str
    """Meaning of 0 if it stands outside the usual meaning ("planned", "no limit")."""
    choices: Callable[[], tuple[str, ...]]
    """Returns the allowed names."""
    texts: Callable[[], Mapping[str, str]]
    """Returns name -> its help, which stands for `{each}` in the docstring."""
    custom: str
    """Form of a name of the user's own, allowed besides the choices ("module:factory")."""
    test: Callable[[Any], bool]
    """Predicate for anything else."""
    remedy: str
    """What `test` accepts."""
    common: bool
    """Shown by plain `--help`."""
    machine: bool
    """It is about this machine: followed only of a run that the user trusts."""
    may_change: bool
    """It may differ when a run is resumed; of a group: any of its options may."""
    leads_out: Callable[[str], bool]
    """Whether a value leads out of what is installed with this program: followed only if who wrote it is trusted."""
    single: str
    """Remark for those who give several values."""
    positional: bool
    """A word without a name."""
    repeated: bool
    """Given once per value."""
    pairs: bool
    """`repeated`, of NAME=VALUE entries: a later one replaces one with the same name."""
    by_name: bool
    """`pairs` of numbers, also given as --OPTION.NAME NUMBER."""
    bounds: tuple[float, float]
    """bounds, scale, tuned: of a hyper, see `hyper` in `algos/hypers.py`."""
    scale: str
    tuned: bool


def option(default: Any = MISSING, **metadata: Unpack[Declared]) -> Any:
    """Declare a field that is an option."""
    assert ("test" in metadata) == ("remedy" in metadata), (
        "a predicate comes with the text of what it accepts"
    )
    return field(default=default, metadata=metadata)


def names_module(value: str) -> bool:
    """Whether the value of an option names a module, as `module:object`."""
    return ":" in value


def names_object(text: str) -> bool:
    """Whether a text has the form module:object."""
    module, _, name = text.partition(":")
    return bool(module and name) and not module.startswith(".")


@dataclass(frozen=True)
class Option:
    """One option in the table of options."""

    path: tuple[str, ...]
    """Names of the fields that lead to it."""
    hint: Any
    """Its type."""
    metadata: Mapping[str, Any]
    """See `Declared`; with what its group adds."""
    owner: type
    """The dataclass that has it as a field."""
    default: Any
    """`MISSING` if it must be given."""

    @property
    def help(self) -> str:
        """Docstring below its field, on one line; `{each}` is replaced by the help of each choice."""
        text = field_docs(self.owner).get(self.path[-1], "")
        return text.replace("{each}", _each(self.metadata["texts"]())) if "texts" in self.metadata else text

    @property
    def name(self) -> str:
        """Dotted name, as it is typed: `pbt.period-frames`."""
        return ".".join(self.path).replace("_", "-")

    @property
    def field(self) -> str:
        """Dotted name, as files and Python write it: `pbt.period_frames`."""
        return ".".join(self.path)

    @property
    def is_positional(self) -> bool:
        """Whether it is a word without a name."""
        return "positional" in self.metadata

    @property
    def holds_pairs(self) -> bool:
        """Whether it holds NAME=VALUE entries. A later one replaces one with the same name."""
        return "pairs" in self.metadata

    @property
    def is_repeated(self) -> bool:
        """Whether it is given once per value."""
        return self.holds_pairs or "repeated" in self.metadata

    @property
    def is_list(self) -> bool:
        """Whether any number of values follows it."""
        return get_origin(self.hint) is tuple and not self.is_repeated

    @property
    def leads_out(self) -> Callable[[str], bool] | None:
        """See `Declared`. What may name a module of the user's own leads out if it does."""
        found: Callable[[str], bool] | None = self.metadata.get("leads_out")
        return found or (names_module if "custom" in self.metadata else None)

    def of(self, options: Any) -> Any:
        """Return its value in an object of the table's dataclass."""
        return reduce(getattr, self.path, options)


def _each(texts: Mapping[str, str]) -> str:
    """Return `name`: text for each, those with the same text together."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(f"`{name}`")
    return " ".join(f"{', '.join(same)}: {text}" for text, same in names.items())


def table(options: Any, **groups: type) -> Mapping[str, Option]:
    """Return dotted name (as it is typed) -> option, of a dataclass of options and of the groups in it.

    options: the dataclass, or an object of it, whose groups may be of classes derived from the declared ones. groups:
    of a dataclass, such derived classes.
    """
    if isinstance(options, type):
        return _table(options, tuple(groups.items()))
    values = ((f.name, getattr(options, f.name)) for f in fields(options))
    kind: type = type(options)
    return _table(kind, tuple((name, type(value)) for name, value in values if is_dataclass(value)))


@cache
def _table(kind: type, kinds: tuple[tuple[str, type], ...]) -> Mapping[str, Option]:
    """kinds: the classes of groups. Every reader of options reads this table; nobody else looks into the classes."""
    hints, groups = get_type_hints(kind), dict(kinds)
    found: list[Option] = []
    for f in fields(kind):
        group = groups.get(f.name, f.default_factory)
        if isinstance(group, type) and is_dataclass(group):
            added = {"may_change": True} if "may_change" in f.metadata else {}
            found += [
                replace(inner, path=(f.name, *inner.path), metadata={**inner.metadata, **added})
                for inner in _table(group, ()).values()
            ]
        else:
            default = f.default if f.default_factory is MISSING else f.default_factory()
            found.append(Option((f.name,), hints[f.name], f.metadata, kind, default))
    return MappingProxyType({option.name: option for option in found})


def walk(options: Any) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """Yield the dotted name, metadata and value of every option of an object of options."""
    for name, one in table(options).items():
        yield name, one.metadata, one.of(options)


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass and of its bases, on one line."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        found |= {
            f.name: field_docs(f.metadata["owner"])[f.name] for f in fields(base) if "owner" in f.metadata
        }
        try:
            (body,) = ast.parse(dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # a class that was made of others, or one without a file
            continue
        assert isinstance(body, ast.ClassDef)
        for above, below in zip(body.body, body.body[1:], strict=False):
            match above, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def with_fields(*kinds: type) -> Callable[[type[T]], type[T]]:
    """Add the options of other dataclasses to a class that becomes one: `@dataclass` stands above this."""

    def add(kind: type[T]) -> type[T]:
        for other in kinds:
            hints = get_type_hints(other)
            for f in fields(other):
                declared = field(default=f.default, metadata={**f.metadata, "owner": other})
                _add(kind, f.name, hints[f.name], declared)
        return kind

    return add


def with_groups(groups: Mapping[str, type]) -> Callable[[type[T]], type[T]]:
    """Add groups of options, name -> dataclass, to a class that becomes a dataclass."""

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
    """Return a dataclass of options with these values: {"learner.rollout": 32, ...}, by the names of fields.

    groups: as for `table`.
    """
    flat, nested = _nested(values)
    kinds: dict[str, Any] = {f.name: groups.get(f.name, f.default_factory) for f in fields(kind)}
    parts = {name: build(kinds[name], nested.get(name, {})) for name in {*nested, *groups}}
    return kind(**flat, **parts)


def changed(options: D, values: Mapping[str, object]) -> D:
    """Return the options with some replaced: {"learner.rollout": 32, ...}, by the names of fields."""
    flat, nested = _nested(values)
    parts = {head: replace(getattr(options, head), **inner) for head, inner in nested.items()}
    return replace(options, **flat, **parts)


def as_base(kind: type[D], options: Any, **others: object) -> D:
    """Return those of the options that a base of their class has. others: values that take the place of some."""
    return kind(**{f.name: getattr(options, f.name) for f in fields(kind)} | others)


def merged(entries: Sequence[str], stronger: Sequence[str]) -> tuple[str, ...]:
    """Return NAME=VALUE entries, with the stronger ones in place of those with the same name."""
    names = {entry.partition("=")[0] for entry in stronger}
    return (*(entry for entry in entries if entry.partition("=")[0] not in names), *stronger)


def over(default: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, by the names of fields, with the NAME=VALUE entries of `default` that they do not replace.

    default: the object of options over which they lie.
    """
    known = {one.field: one for one in table(default).values()}
    return {
        name: merged(known[name].of(default), value) if known[name].holds_pairs else value
        for name, value in values.items()
    }


def _nested(values: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Part the values of options from those of groups, by group."""
    flat: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            flat[head] = value
    return flat, nested
