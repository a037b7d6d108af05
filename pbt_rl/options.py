"""Options declare their bounds as metadata of their field; one table of them is made, which all that read options read.

An option is a field of a frozen dataclass, and its metadata is a `Declared`. `option` writes it; rooms that import
nothing of ours write the dictionary themselves. The docstring below a field is its help. Rules between several options
are functions of the class that holds them all.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from functools import cache, reduce
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from pbt_rl.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
D = TypeVar("D", bound="DataclassInstance")

MOST = 10**18
"""Whole numbers stay below it: counts of frames that no run reaches, which any arithmetic holds."""
_SHOWN = 200
"""Characters of a value in a message."""


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


def option(default: Any = MISSING, **metadata: Unpack[Declared]) -> Any:
    """Declare a field that is an option."""
    assert ("test" in metadata) == ("remedy" in metadata), (
        "a predicate comes with the text of what it accepts"
    )
    return field(default=default, metadata=metadata)


def names_module(value: str) -> bool:
    """Whether the value of an option names a module, as `module:object`."""
    return ":" in value


@dataclass(frozen=True)
class Option:
    """A line of the table of options: all that is known of one of them."""

    path: tuple[str, ...]
    """Names of the fields that lead to it."""
    hint: Any
    """Its type, with the marks that say how it is typed."""
    metadata: Mapping[str, Any]
    """See `Declared`; with what its group adds."""
    owner: type
    """The dataclass that has it as a field."""
    default: Any
    """`MISSING` if it must be given."""
    typed_name: str = ""
    """As it is typed, if that is not its path."""

    @property
    def help(self) -> str:
        """The docstring below its field, on one line, with the texts of what it may name for `{each}`."""
        text = field_docs(self.owner).get(self.path[-1], "")
        return text.replace("{each}", _each(self.metadata["texts"]())) if "texts" in self.metadata else text

    @property
    def name(self) -> str:
        """Dotted name, as it is typed: `pbt.period-frames`."""
        return self.typed_name or ".".join(self.path).replace("_", "-")

    @property
    def field(self) -> str:
        """Dotted name, as files and Python write it: `pbt.period_frames`."""
        return ".".join(self.path)

    @property
    def bare(self) -> Any:
        """Its type without marks."""
        return get_args(self.hint)[0] if get_origin(self.hint) is Annotated else self.hint

    @property
    def marks(self) -> tuple[Any, ...]:
        """Marks of its type, such as tyro's."""
        return get_args(self.hint)[1:] if get_origin(self.hint) is Annotated else ()

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
    hints, groups = get_type_hints(kind, include_extras=True), dict(kinds)
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
            marks = get_args(hints[f.name])[1:] if get_origin(hints[f.name]) is Annotated else ()
            own = next((mark.name for mark in marks if getattr(mark, "name", None)), "")
            default = f.default if f.default_factory is MISSING else f.default_factory()
            found.append(Option((f.name,), hints[f.name], f.metadata, kind, default, own))
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
            hints = get_type_hints(other, include_extras=True)
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


def validate(options: Any) -> None:
    """Check every option against its metadata. Raises ConfigError with the option, its value and what is allowed."""
    for name, metadata, value in walk(options):
        if not allows(metadata, value):
            hint = _meant(name, metadata, value, table(options)) if "choices" in metadata else ""
            raise ConfigError(
                f"--{name} {_text(value)} cannot be used: {hint}give {allowed(metadata, value)}"
            )


def _meant(name: str, metadata: Mapping[str, Any], value: str, known: Mapping[str, Option]) -> str:
    """Return what is probably meant by a value that is none of the names to choose from; "" if nothing is."""
    elsewhere = [
        other
        for other, one in known.items()
        if "choices" in one.metadata and value in one.metadata["choices"]()
    ]
    if elsewhere:
        return f"write --{elsewhere[0]} {value}; here "
    return meant(name, value, metadata["choices"]())


def meant(option: str, value: str, names: Collection[str]) -> str:
    """Return what is probably meant by a value of an option, to stand before all names; "" if nothing is near."""
    if answer := OTHER_VALUES.get((option, value.lower())):
        return f"{answer}; "
    close = get_close_matches(value.lower(), names, n=1)
    return f"did you mean {close[0]}? " if close else ""


def allows(metadata: Mapping[str, Any], value: Any) -> bool:
    """Whether the metadata of an option allows a value. None stands for no value and is always allowed."""
    if value is None:
        return True
    if "choices" in metadata:
        return value in metadata["choices"]() or ("custom" in metadata and names_object(value))
    if "test" in metadata:
        return bool(metadata["test"](value))
    if not _BOUNDS.keys() & metadata.keys():
        return True
    numbers = value if isinstance(value, tuple) else (value,)
    if not numbers:
        return "empty" in metadata
    if "distinct" in metadata and len(set(numbers)) < len(numbers):
        return False
    # NaN compares as false, so it is within no bounds.
    return all(
        within(number, metadata[bound])
        for bound, within in _BOUNDS.items()
        if bound in metadata
        for number in numbers
    )


def displayed(metadata: Mapping[str, Any], value: object) -> str:
    """Return a value of an option as text: what a 0 stands for, thousands with commas, no brackets."""
    if value == 0 and "zero" in metadata:
        return str(metadata["zero"])
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def allowed(metadata: Mapping[str, Any], value: Any = None) -> str:
    """Describe what the metadata of an option allows, such as "0 to 1" or "0 (planned) or more"; "" for anything.

    value: any value of the option; a tuple is described as several numbers.
    """
    if "choices" in metadata:
        names: list[str] = [*metadata["choices"](), *([metadata["custom"]] if "custom" in metadata else [])]
        return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    if "remedy" in metadata:
        return str(metadata["remedy"])
    text = _range(metadata)
    if text and isinstance(value, tuple):
        return f"one or more{' different' if 'distinct' in metadata else ''} numbers, each {text}"
    return text


_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "at_least": lambda number, bound: number >= bound,
    "above": lambda number, bound: number > bound,
    "at_most": lambda number, bound: number <= bound,
    "below": lambda number, bound: number < bound,
}


def _range(metadata: Mapping[str, Any]) -> str:
    bounds = {name: f"{metadata[name]:g}" for name in _BOUNDS if name in metadata}
    match bounds:
        case {"at_least": low, "at_most": high}:
            return f"{low} to {high}{' (off)' if 'off' in metadata else ''}"
        case {"at_least": low, **others} if not others:
            return f"{low} ({metadata['zero']}) or more" if "zero" in metadata else f"{low} or more"
    words = {"at_least": "at least", "above": "above", "at_most": "at most", "below": "below"}
    return ", ".join(f"{words[name]} {bound}" for name, bound in bounds.items())


def names_object(text: str) -> bool:
    """Whether a text has the form module:object."""
    module, _, name = text.partition(":")
    return bool(module and name) and not module.startswith(".")


def local_path(given: str | os.PathLike[str]) -> Path:
    """Return a path of this machine, with `~` and `$NAME` expanded: no shell does that in files, quotes and Python.

    Raises ValueError, whose text is the remedy, for nothing, an address, a path of Windows, and a name that is not set.
    """
    text = os.path.expanduser(os.path.expandvars(given))  # noqa: PTH111 - of a text
    if re.match(r"$|~|\\\\|[A-Za-z][\w+.-]*:[/\\]", text) or re.search(r"\0|\$[\w{(]|%\w+%", text):
        raise ValueError("a path of this machine, no address, and whose $NAMEs are set")
    return Path(text)


def path_given(name: str, given: str | Path) -> Path:
    """Return the path that an option or a parameter of this name is given. Raises ConfigError."""
    try:
        return local_path(given)
    except ValueError as remedy:
        raise ConfigError(f"{name} {given or repr(given)} cannot be used: give {remedy}") from None


def as_type(hint: Any, value: Any) -> Any:
    """Return a value in the type of an option: a list becomes a tuple, a text a path, a whole number a float.

    Numbers and truths of numpy, arrays without axes, fractions and decimals are taken as Python's, and whole floats as
    whole numbers.

    Raises ValueError, whose text describes the type, for a value of another type.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, Fraction | Decimal):
        value = float(value)
    value = value.value if isinstance(value, Enum) else value
    if origin is Annotated:
        return as_type(arguments[0], value)
    if origin is UnionType:  # X | None
        return None if value is None else as_type(arguments[0], value)
    if origin is Literal:
        return _checked(value, value in arguments, f"one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        value = value.tolist() if hasattr(value, "tolist") else value  # numpy's
        if isinstance(value, set | frozenset):
            value = sorted(value, key=str)
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
            raise ValueError(
                'several texts, such as ["a", "b"]' if arguments[0] is str else "several, such as [1.2, 0.8]"
            )
        return tuple(as_type(arguments[0], x) for x in value)
    if hint is Path:
        return local_path(_checked(value, isinstance(value, str | os.PathLike), "a path"))
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_checked(value, number and abs(value) <= sys.float_info.max, "a finite number"))
    if hint is int:
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        whole = isinstance(value, int) and not isinstance(value, bool)
        return _checked(value, whole and abs(value) < MOST, "a whole number of at most 18 digits")
    if is_dataclass(hint):
        raise ValueError("its options by name")
    if hint is bool:
        return _checked(value, isinstance(value, bool), "true or false")
    assert hint is str, hint
    value = str(value) if isinstance(value, Path) else value
    return _checked(value, isinstance(value, str) and all(map(_writable, value)), "a text that can be shown")


def _writable(character: str) -> bool:
    """Whether a terminal and any file take it: no control character, and no half of one."""
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")


def _checked(value: Any, fits: bool, kind: str) -> Any:
    if not fits:
        raise ValueError(kind)
    return value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))[:_SHOWN] or "(none)"
    return str(value)[:_SHOWN] or "''"


# -- names elsewhere -------------------------------------------------------------------------------------------

OTHER_NAMES: dict[str, str] = {
    name: option
    for option, names in {
        "actors": "num-workers num-rollout-workers num-env-runners",
        "devices": "device gpu gpus cuda num-gpus",
        "envs-per-unit": "num-envs n-envs num-envs-per-worker",
        "hypers.clip-ratio": "clip-coef clip-range ppo-clip-ratio",
        "hypers.clip-value": "ppo-clip-value clip-vloss clip-range-vf",
        "hypers.entropy-coef": "ent-coef entropy-coeff exploration-loss-coeff",
        "hypers.kl-coef": "kl-loss-coeff",
        "hypers.learning-rate": "lr",
        "hypers.value-coef": "vf-coef vf-loss-coeff value-loss-coeff",
        "learner.batch": "batch-size train-batch-size",
        "learner.epochs": "update-epochs n-epochs num-sgd-iter",
        "learner.lr-schedule-kl": "lr-schedule-kl-threshold desired-kl",
        "learner.minibatches": "num-batches-per-epoch",
        "learner.normalize-observations": "normalize-input",
        "learner.returns": "with-vtrace",
        "learner.rollout": "num-steps n-steps recurrence rollout-fragment-length",
        "mode": "async-rl serial-mode",
        "model.action-bounds": "continuous-tanh-scale",
        "model.core": "use-rnn rnn-type use-lstm",
        "model.core-layers": "rnn-num-layers",
        "model.core-size": "rnn-size lstm-size",
        "model.critic": "actor-critic-share-weights",
        "model.deviation": "adaptive-stddev",
        "model.initial-deviation": "initial-stddev init-noise-std init-std",
        "model.encoder": "encoder-conv-architecture policy",
        "name": "experiment exp-name run-name",
        "num-policies": "population-size num-samples",
        "out": "train-dir log-dir storage-path",
        "pbt.enabled": "with-pbt",
        "pbt.period-frames": "perturbation-interval pbt-period-env-steps",
        "pbt.replace-fraction": "quantile-fraction",
        "pbt.start-frames": "burn-in-period pbt-start-mutation",
        "random-phases": "decorrelate-envs-on-one-worker init-at-random-ep-len",
        "pbt.tune": "hyperparam-mutations pbt-optimize-gamma",
        "resume": "restart-behavior",
        "save-every-frames": "save-milestones-sec save-freq",
        "train-for-frames": "total-timesteps train-for-env-steps",
        "track": "with-wandb",
        "units-per-actor": "worker-num-splits",
    }.items()
    for name in names.split()
}
"""What Sample Factory, Stable-Baselines3, CleanRL and Ray call an option, where that is not alike -> its name here."""
_OFF_POLICY = "there are no off-policy algorithms; `pbt_rl.tune.run` tunes those of other libraries"
_RAYS_MODE = "it is Ray's, and here more is better: let the environment give the negative as its reward"
OTHER_VALUES: dict[tuple[str, str], str] = {
    ("algo", "ppo"): "appo is PPO, with --mode sync as it was published",
    ("algo", "impala"): "appo with --learner.returns vtrace is near it",
    ("algo", "a2c"): "a3c with --mode sync is A2C",
    **{
        ("algo", name): _OFF_POLICY
        for name in ["sac", "dqn", "rainbow", "td3", "ddpg", "qrdqn", "c51", "crossq", "tqc", "r2d2", "apex"]
    },
    ("model.encoder", "cnn"): "nature is the usual CNN",
    ("model.encoder", "resnet"): "impala is a residual network",
    ("mode", "min"): _RAYS_MODE,
    ("mode", "max"): "it is Ray's, and here more is better: leave it out",
}
"""(option, value elsewhere) -> what to do instead."""
