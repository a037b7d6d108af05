"""Words of a command line, before tyro sees them: each becomes what tyro expects, or one clear error.

--train_for_frames 1M        ->  --train-for-frames 1000000
--pbt.enabled False          ->  --pbt.no-enabled
--hypers.clip-value=off      ->  --hypers.clip-value 1e9
--lr 1e-3                    ->  ConfigError: --lr is no option: write --hypers.learning-rate
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from pbt_rl.errors import ConfigError
from pbt_rl.given.names import spelt, unknown
from pbt_rl.given.numbers import number, whole

POSITIONAL = get_args(tyro.conf.Positional[int])[1]
NAMED: Any = type(tyro.conf.arg(name="x"))
"""Mark of a field whose option has a name of its own."""
REPEATED = get_args(tyro.conf.UseAppendAction[int])[1]
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
VALUE = re.compile(r"-(\d|\.\d|inf|nan)")
"""A word that begins with a dash and is a value."""


@dataclass(frozen=True)
class Word:
    """An option that a command knows."""

    name: str
    hint: Any
    metadata: Mapping[str, Any]
    required: bool = False

    @property
    def several(self) -> bool:
        """Whether any number of values follows it."""
        return get_origin(_bare(self.hint)) is tuple and not self.repeated

    @property
    def repeated(self) -> bool:
        """Whether it is given once for each of its values."""
        return REPEATED in get_args(self.hint)[1:]

    @property
    def is_switch(self) -> bool:
        """Whether it needs no value."""
        return _bare(self.hint) is bool


def understood(kind: type, arguments: list[str], prog: str) -> list[str]:
    """Return the arguments with options and values in the form that tyro expects.

    kind: dataclass of the command. Raises ConfigError for an option that is none, one without its value, a value of
    another type, and a value that belongs to no option.
    """
    options = {word.name: word for word in words(kind)}
    positional = [word for word in options.values() if POSITIONAL in get_args(word.hint)[1:]]
    known = options.keys() - {word.name for word in positional}
    result: list[str] = []
    free: list[str] = []
    behind: dict[int, str] = {}
    """Index in `free` -> the switch that it stands behind, perhaps as its value."""
    last_switch = ""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or VALUE.match(word):
            if last_switch:
                behind[len(free)] = last_switch
            free.append(word)
            last_switch = ""
            continue
        written, equals, value = word.partition("=")
        option, negated = _find(written, options, known, prog)
        given = [value] if equals else _taken(option, rest)
        result += _written(option, written, given, negated=negated)
        last_switch = written if option.is_switch and not given else ""
    if len(free) > len(positional) and not any(option.several for option in positional):
        if len(positional) in behind:
            raise ConfigError(
                f"{behind[len(positional)]} {free[len(positional)]} cannot be used: give true or false"
            )
        raise ConfigError(f"{free[len(positional)]!r} belongs to no option; {prog} --help")
    missing = [option.name.upper() for option in positional[len(free) :] if option.required]
    if missing:
        raise ConfigError(f"{missing[0]} is missing: {prog} {missing[0]}; {prog} --help")
    return [*free, *result]


def words(kind: type, prefix: str = "") -> Iterator[Word]:
    """Yield the options of a dataclass and of those nested in it."""
    hints = get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        own = [mark.name for mark in get_args(hints[f.name])[1:] if isinstance(mark, NAMED) and mark.name]
        name, inner = prefix + (own[0] if own else f.name.replace("_", "-")), f.default_factory
        if isinstance(inner, type) and is_dataclass(inner):
            yield from words(inner, f"{name}.")
        else:
            required = f.default is MISSING and inner is MISSING
            yield Word(name, hints[f.name], f.metadata, required)


def _find(written: str, options: Mapping[str, Word], known: set[str], prog: str) -> tuple[Word, bool]:
    """Return the option that is written, and whether it is switched off by `no-`."""
    name = spelt(written) if written.startswith("--") else ""
    if name in known:
        return options[name], False
    path, dot, last = name.rpartition(".")
    switched = f"{path}{dot}{last.removeprefix('no-')}"
    if last.startswith("no-") and switched in known and options[switched].is_switch:
        return options[switched], True
    line = unknown(written, known)
    more = "-all" if prog.endswith("train") else ""
    raise ConfigError(line if ":" in line or "?" in line else f"{line}; {prog} --help{more} lists them")


def _taken(option: Word, rest: list[str]) -> list[str]:
    """Take the values of an option from the words that follow it."""
    taken: list[str] = []
    while rest and (not rest[0].startswith("-") or VALUE.match(rest[0])):
        if option.is_switch and rest[0].lower() not in YES + NO:
            break
        taken.append(rest.pop(0))
        if not option.several:
            break
    return taken


def _written(option: Word, written: str, given: list[str], *, negated: bool) -> list[str]:
    if option.is_switch:
        return [_switch(option, written, given, negated=negated)]
    if not given and not option.several:
        raise ConfigError(f"{written} needs a value")
    values = []
    for text in given:
        try:
            values.append(_value(option.hint, option.metadata, text))
        except ValueError as remedy:
            raise ConfigError(f"{written} {text or repr(text)} cannot be used: give {remedy}") from None
    if option.several:
        return [f"--{option.name}", *values]
    return [f"--{option.name}={values[0]}"]


def _switch(option: Word, written: str, given: list[str], *, negated: bool) -> str:
    text = given[0].lower() if given else YES[0]
    if text not in YES + NO:
        raise ConfigError(f"{written} {given[0]} cannot be used: give true or false")
    path, dot, last = option.name.rpartition(".")
    on = (text in YES) != negated
    return f"--{path}{dot}{last if on else f'no-{last}'}"


def _value(hint: Any, metadata: Mapping[str, Any], text: str) -> str:
    """Return a value as tyro reads it. Raises ValueError whose text is the remedy."""
    hint = _bare(hint)
    if isinstance(hint, UnionType):
        if text.lower() == "none":
            return "None"
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return _choice(text, tuple(map(str, get_args(hint))))
    if "off" in metadata and text.lower() == metadata["off"]:
        return f"{metadata['at_most']:g}"
    if hint is int:
        return str(whole(text))
    return repr(number(text)) if hint is float else text


def _choice(text: str, names: tuple[str, ...]) -> str:
    if text in names:
        return text
    close = difflib.get_close_matches(text, names, n=1)
    raise ValueError(", ".join(names[:-1]) + f" or {names[-1]}{f' ({close[0]}?)' if close else ''}")


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint
