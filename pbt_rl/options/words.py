"""Parser of command lines.

    words --split--> Line --typed--> dotted field -> value

--train_for_frames 1M        ->  train_for_frames = 1000000
--pbt.enabled False          ->  pbt.enabled = False
--hypers.clip-value=off      ->  hypers.clip_value = 1e9
--lr 1e-3                    ->  ConfigError: Unknown option --lr. Write --hypers.learning-rate

`split` works without the table of options, because the table depends on --algo and --config in the `Line`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import Option, build, table
from pbt_rl.options.help import draw
from pbt_rl.options.names import assigned, meant, spelt, unknown
from pbt_rl.options.values import allowed, number, reader, validate

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
HELP = {"-h", "--help", "--help-all"}
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
VALUE = re.compile(r"-(\d|\.\d|inf|nan)")
"""Start of a negative number. A negative number is a value, although it starts with a dash."""


@dataclass(frozen=True)
class Entry:
    """Option on a command line.

    written: text before `=`, as typed. text: text after `=`, or None without `=`. follow: words before the next option.
    """

    written: str
    text: str | None
    follow: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the option, as `spelt` normalises it (such as `pbt.period-frames`). A word with a single dash: ""."""
        return spelt(self.written) if self.written.startswith("--") else ""

    @property
    def words(self) -> list[str]:
        """Words of the option and its values, as typed."""
        return [self.written if self.text is None else f"{self.written}={self.text}", *self.follow]


@dataclass(frozen=True)
class Line:
    """Command line. head: words before the first option."""

    head: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def words(self) -> list[str]:
        """All words of the command line, as typed."""
        return [*self.head, *(word for entry in self.entries for word in entry.words)]

    @property
    def names(self) -> list[str]:
        """Normalised names of the options, without the prefix `no-`."""
        return [entry.name.removeprefix("no-") for entry in self.entries]

    @property
    def asks_help(self) -> bool:
        """True if -h, --help or --help-all is among the options."""
        return not HELP.isdisjoint(entry.written for entry in self.entries)

    def last(self, name: str) -> str | None:
        """Return the value of an option, as typed, or None if the line has no value of this option.

        name: normalised name. If the option is given several times, its last occurrence with a value counts. Of several
        words after the option, the first word is returned.
        """
        given = [
            entry.follow[0] if entry.text is None else entry.text
            for entry in self.entries
            if entry.name == name and (entry.text is not None or entry.follow)
        ]
        return given[-1] if given else None

    def without(self, names: Collection[str]) -> Line:
        """Return the line without these options (normalised names) and their values."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.name not in names))


def split(words: Sequence[str]) -> Line:
    """Split a command line into its options."""
    entries: list[tuple[str, list[str]]] = [("", [])]
    for word in words:
        if _is_value(word):
            entries[-1][1].append(word)
        else:
            entries.append((word, []))
    (_, head), *given = entries
    return Line(tuple(head), tuple(_entry(word, follow) for word, follow in given))


def _entry(word: str, follow: Sequence[str]) -> Entry:
    written, equals, text = word.partition("=")
    return Entry(written, text if equals else None, tuple(follow))


def _is_value(word: str) -> bool:
    """True if a word is a value, False if it is an option."""
    return not word.startswith("-") or VALUE.match(word) is not None


def parse(kind: type[T], prog: str, arguments: Sequence[str]) -> T:
    """Build a command from its arguments. Raises ConfigError for wrong arguments. Raises SystemExit after --help.

    kind: dataclass of the command's options. prog: text of the command in messages, such as `pbt-rl train`.
    """
    line, options = split(arguments), table(kind)
    _help(kind, prog, line)
    return _built(kind, prog, typed(options, line, prog))


def parse_part(kind: type[T], prog: str, arguments: Sequence[str]) -> tuple[T, Line]:
    """Build a command from the arguments that are its options, and return the other arguments as a `Line`.

    Parameters and exceptions: as `parse`.
    """
    line, options = split(arguments), table(kind)
    _help(kind, prog, line)
    own = [entry for entry in line.entries if entry.name.removeprefix("no-") in options]
    values, free = _taken(options, own, prog)
    others = tuple(entry for entry in line.entries if entry not in own)
    return _built(kind, prog, values), Line((*line.head, *(word for word, _ in free)), others)


def _help(kind: type, prog: str, line: Line) -> None:
    """If the line contains --help, print the help and raise SystemExit."""
    if line.asks_help:
        draw(kind, table(kind).values(), lambda option: option.default, prog)


def _built(kind: type[T], prog: str, values: Mapping[str, Any]) -> T:
    for option in table(kind).values():
        if option.default is MISSING and option.field not in values:
            name = option.name.upper() if option.is_positional else f"--{option.name}"
            raise ConfigError(f"{name} is missing: write {prog} {name} (see {prog} --help)")
    command = build(kind, values)
    validate(command)
    return command


_Free = tuple[str, str]
"""(word, error message). The word is not a value of a named option. If no positional option takes the word, the message
is raised as a ConfigError. With an empty message, a general message is raised.
"""


def typed(options: Mapping[str, Option], line: Line, prog: str) -> dict[str, Any]:
    """Convert a line to dotted field -> value, for the options that the line contains.

    options: name -> option. prog: text of the command in messages.

    Raises ConfigError with one line per mistake (unknown option, missing value, wrong type). Without these mistakes,
    raises ConfigError for the first word that does not belong to an option.
    """
    values, free = _taken(options, line.entries, prog)
    free = [*((word, assigned(word, _named(options))) for word in line.head), *free]
    return values | _placed([option for option in options.values() if option.is_positional], free, prog)


def _taken(
    options: Mapping[str, Option], entries: Sequence[Entry], prog: str
) -> tuple[dict[str, Any], list[_Free]]:
    """Convert entries to dotted field -> value. Return these values, and the words that do not belong to an option.

    Raises ConfigError with one line per mistake.
    """
    values: dict[str, Any] = {}
    free: list[_Free] = []
    mistakes: list[str] = []
    for entry in entries:
        try:
            free += _take(entry, options, values, prog)
        except ConfigError as error:  # report all mistakes: a command of another trainer has several
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return values, free


def _take(entry: Entry, options: Mapping[str, Option], values: dict[str, Any], prog: str) -> list[_Free]:
    """Add the value of an entry to `values`. Return the words that do not belong to the option.

    Raises ConfigError for an invalid value.
    """
    option, switched_off, key = _find(entry.written, options, prog)
    given = [entry.text] if entry.text is not None else _own(option, entry.follow)
    behind = entry.follow if entry.text is not None else entry.follow[len(given) :]
    value = _read(option, entry.written, given, key)
    if option.is_repeated:
        value = values.get(option.field, ()) + value
    elif option.is_list and option.field in values:
        raise ConfigError(f"{entry.written} is given twice: give all values after a single {entry.written}")
    values[option.field] = not value if switched_off else value
    whys = [assigned(word, _named(options)) for word in behind]
    if option.is_repeated and behind:
        once = f"write {entry.written} before each value, such as {entry.written} {behind[0]}"
        whys[0] = f"{behind[0]!r} does not belong to an option: {once}"
    elif option.hint is bool and not given and behind:
        whys[0] = f"{entry.written} {behind[0]} cannot be used: give true or false"
    return list(zip(behind, whys, strict=True))


def _named(options: Mapping[str, Option]) -> dict[str, Option]:
    """Return the options that are not positional."""
    return {name: option for name, option in options.items() if not option.is_positional}


def _own(option: Option, follow: Sequence[str]) -> list[str]:
    """Return the words that are values of the option. follow: words after the option."""
    if option.hint is bool:
        return [word for word in follow[:1] if word.lower() in YES + NO]
    return list(follow if option.is_list else follow[:1])


def _placed(positional: Sequence[Option], free: Sequence[_Free], prog: str) -> dict[str, Any]:
    """Convert words to values of positional options: dotted field -> value.

    Raises ConfigError for a wrong value, or if there are more words than options. An option that is a list takes all
    words.
    """
    if any(option.is_list for option in positional):
        (option,) = positional
        words = [word for word, _ in free]
        return {option.field: _read(option, option.name.upper(), words)} if words else {}
    for word, why in free[len(positional) :]:
        raise ConfigError(why or f"{word!r} does not belong to an option; see {prog} --help")
    return {
        option.field: _read(option, option.name.upper(), [word])
        for option, (word, _) in zip(positional, free, strict=False)
    }


def _find(written: str, options: Mapping[str, Option], prog: str) -> tuple[Option, bool, str]:
    """Find an option by its name as typed. Raises ConfigError for an unknown option.

    Return (option, True if the name has the prefix `no-`, NAME of --OPTION.NAME or "").
    """
    known = _named(options)
    name = spelt(written) if written.startswith("--") else ""
    if name in known:
        return known[name], False, ""
    path, dot, last = name.rpartition(".")
    switched = known.get(f"{path}{dot}{last.removeprefix('no-')}")
    if switched is not None and switched.hint is bool:
        return switched, True, ""
    pairs, dot, key = written.partition(".")
    if dot and spelt(pairs) in known and "by_name" in known[spelt(pairs)].metadata:
        return known[spelt(pairs)], False, key
    line = unknown(written, known)
    if name.partition(".")[0] in ("env", "env-option", "algo", "model") and "run" in options:
        line = f"{written} is not needed, because config.json of the run contains it: leave it out"
    more = "-all" if prog.endswith("train") else ""
    raise ConfigError(line if ": " in line or ". " in line else f"{line}; see {prog} --help{more}")


def _read(option: Option, written: str, given: Sequence[str], key: str = "") -> Any:
    """Convert texts to the type of an option. Raises ConfigError for a missing or invalid value.

    written: option as typed. given: texts of the values. key: NAME of --OPTION.NAME; the result is then NAME=NUMBER.
    """
    if option.hint is bool:
        text = given[0].lower() if given else YES[0]
        if text not in YES + NO:
            raise ConfigError(f"{written} {given[0]} cannot be used: give true or false")
        return text in YES
    if not given and not option.is_list:
        remedy = option.metadata.get("remedy")
        raise ConfigError(f"{written} needs a value{f': give {remedy}' if remedy else ''}")
    values = []
    for text in given:
        try:
            values.append(f"{key}={number(text)}" if key else _value(option, text))
        except ValueError as remedy:
            raise ConfigError(f"{written} {text or repr(text)} cannot be used: give {remedy}") from None
    return tuple(values) if get_origin(option.hint) is tuple else values[0]


def _value(option: Option, text: str) -> Any:
    """Convert one text to the type of an option. Raises ValueError with a description of allowed values."""
    if isinstance(option.hint, UnionType) and text.lower() == "none":
        return None
    if get_origin(option.scalar) is Literal:
        names = get_args(option.scalar)
        if text in names:
            return text
        guess = meant(option.name, text, names).strip("; ")
        raise ValueError(allowed({"choices": lambda: names}) + (f" ({guess})" if guess else ""))
    if text.lower() == option.metadata.get("off"):
        return option.metadata["at_most"]
    return reader(option.name, option.scalar)(text)


# -- values in command-line syntax --------------------------------------------------------------------------


def as_words(option: Option, value: object) -> list[str]:
    """Format an option and its value in command-line syntax: one text, or (repeated option) one text per value."""
    if option.is_repeated:
        assert isinstance(value, tuple)
        return [f"--{option.name} {shlex.quote(str(entry))}" for entry in value]
    entries = value if isinstance(value, tuple) else (value,)
    return [shlex.join([f"--{option.name}", *map(_as_word, entries)])]


def _as_word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
