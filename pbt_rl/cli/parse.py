"""What is typed, read by the table of options: each word becomes a value in the type of its option, or one clear error.

--train_for_frames 1M        ->  train_for_frames = 1000000
--pbt.enabled False          ->  pbt.enabled = False
--hypers.clip-value=off      ->  hypers.clip_value = 1e9
--lr 1e-3                    ->  ConfigError: --lr is no option: write --hypers.learning-rate

Names may be those of other trainers, shortened or misspelt; numbers are 1e6, 1M, 10_000_000 or 2.5k.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, make_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import tyro

from pbt_rl.errors import ConfigError
from pbt_rl.options import MOST, OTHER_NAMES, Option, allowed, build, local_path, meant, table
from pbt_rl.run.recipes import PAIRS, merged

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def spelt(name: str) -> str:
    """Return a name as options are spelt: small letters, `-` between words, no dashes before it."""
    return name.lstrip("-").replace("_", "-").lower()


TWICE = {"value-loss-coeff", "vf-loss-coeff", "vf-coef"}
"""Weights of a value loss without the factor 1/2 of ours; `vf-coef` as Stable-Baselines3 has it, not CleanRL."""

ANSWERS = {
    "metric": "members are compared by the objective that the environment reports; more is better",
    "with-wandb": "write --track wandb",
    "seeds": "`pbt-rl sweep --name NAME --seeds 0 1 2` trains the same with several seeds",
}
"""Option that has none for it -> what to do instead."""


def spellings(words: Sequence[str]) -> list[str]:
    """Return the names of the options among words, as they are spelt; what is switched off by its own name."""
    return [spelt(word.partition("=")[0]).removeprefix("no-") for word in words if word.startswith("--")]


def unknown(name: str, known: Collection[str], *, sign: str = "--") -> str:
    """Return one line about a name that is none of the known options (dotted, with `-`), with the right one if it
    is recognised.
    """
    typed = spelt(name)
    last = typed.rpartition(".")[2]
    option = OTHER_NAMES.get(last)
    if last in ANSWERS and "num-policies" in known:
        return f"{name} is no option: {ANSWERS[last]}"
    if option in known:
        remark = ", and twice the number unless it is CleanRL's: our value loss has the factor 1/2"
        return f"{name} is no option: write {sign}{option}{remark if last in TWICE else ''}"
    same = [k for k in sorted(known) if k.rpartition(".")[2] == last or k.replace(".", "-") == typed]
    close = same or difflib.get_close_matches(typed, known, n=3, cutoff=0.75)
    if not close:
        leaves = {k.rpartition(".")[2]: k for k in known}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(last, leaves, n=3, cutoff=0.75)]
    if close:
        return f"{name} is no option: did you mean {' or '.join(sign + k for k in close)}?"
    return f"{name} is no option"


WHOLE = "a whole number, such as 5000000, 5e6 or 5M"
UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


def number(text: str) -> float:
    """Return the number. Raises ValueError whose text is the remedy."""
    digits = text.strip()
    unit = UNITS.get(digits[-1:].lower(), 1.0)
    try:
        value = float(digits[:-1] if unit != 1 else digits)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(value * unit):
        raise ValueError("a finite number")
    return value * unit


TIMES = {"seconds": 1, "hours": 3600}
"""Last word of an option that is a time -> its unit in seconds."""
_PART = re.compile(r"(\d+\.?\d*|\.\d+)\s*(d|h|min|m|sec|s)\s*")


def duration(text: str, unit: float) -> float:
    """Return a time in this unit (seconds), typed as a number, 90s, 30m, 1h30m or 1:30:00. k, M and G are none.

    Raises ValueError whose text is the remedy.
    """
    digits, parts = text.strip(), _PART.findall(text)
    fields = digits.split(":")
    if parts and not _PART.sub("", digits):
        of_letter = {"d": 86400, "h": 3600, "m": 60, "s": 1}
        return sum((float(amount) * of_letter[letter[0]] for amount, letter in parts), 0.0) / unit
    if len(fields) in (2, 3) and all(field.replace(".", "", 1).isdecimal() for field in fields):
        return sum((float(field) * 60.0**place for place, field in enumerate(reversed(fields))), 0.0) / unit
    try:
        return number(str(float(digits)))
    except ValueError:
        raise ValueError("a time, such as 1800, 90s, 30m, 1.5h or 1:30:00") from None


def gigabytes(text: str) -> float:
    """Return a number of gigabytes, typed as 10 or 10GB. Raises ValueError whose text is the remedy."""
    digits = re.sub(r"\s*gi?b?$", "", text.strip(), flags=re.IGNORECASE)
    if digits[-1:].isalpha():
        raise ValueError("gigabytes, such as 10")
    return number(digits)


def reader(name: str, hint: Any) -> Callable[[str], Any]:
    """Return what reads a text as the value of an option of this name and type. It raises ValueError, see `whole`."""
    unit = next((seconds for word, seconds in TIMES.items() if name.endswith(word)), None)
    if unit is not None and hint is float:
        return lambda text: duration(text, unit)
    if name.endswith("-gb"):
        return gigabytes
    readers: dict[Any, Callable[[str], Any]] = {int: whole, float: number, Path: local_path}
    return readers.get(hint, str)


def whole(text: str) -> int:
    """Return the whole number. Raises ValueError whose text is the remedy."""
    try:
        value = int(text)  # exact, also beyond the 53 bits of a float
    except ValueError:
        try:
            inexact = number(text)
        except ValueError:
            raise ValueError(WHOLE) from None
        if not inexact.is_integer():
            raise ValueError(WHOLE) from None
        value = int(inexact)
    if abs(value) >= MOST:
        raise ValueError("a whole number of at most 18 digits")
    return value


T = TypeVar("T", bound="DataclassInstance")
HELP = {"-h", "--help"}
POSITIONAL = get_args(tyro.conf.Positional[int])[1]
REPEATED = get_args(tyro.conf.UseAppendAction[int])[1]
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
VALUE = re.compile(r"-(\d|\.\d|inf|nan)")
"""A word that begins with a dash and is a value."""


def parse(kind: type[T], prog: str, arguments: list[str]) -> T:
    """Return the command that is typed.

    Raises ConfigError, or the error that our own classes raise about a value. With --help it prints the options and
    raises SystemExit.
    """
    options = table(kind)
    if HELP & set(arguments):
        draw(kind, options.values(), lambda option: option.default, prog)
    values = typed(options, arguments, prog)
    for option in options.values():
        if option.default is MISSING and option.field not in values:
            name = option.name.upper() if POSITIONAL in option.marks else f"--{option.name}"
            raise ConfigError(f"{name} is missing: {prog} {name}; {prog} --help")
    return build(kind, values)


def over(default: Any, options: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return typed values, with the entries of key=value options that stay beside those typed."""
    known = {option.field: option for option in options.values()}
    return {
        name: merged(known[name].of(default), value) if holds_pairs(name) else value
        for name, value in values.items()
    }


def holds_pairs(name: str) -> bool:
    """Whether an option holds key=value entries, of which a later one takes the place of one with the same key."""
    return name.endswith("option") or name in PAIRS


def typed(options: Mapping[str, Option], arguments: Sequence[str], prog: str) -> dict[str, Any]:
    """Return dotted name of a field -> value, of the options that are typed.

    Raises ConfigError for an option that is none, one without its value, a value of another type, and a value that
    belongs to no option.
    """
    positional = [option for option in options.values() if POSITIONAL in option.marks]
    known = options.keys() - {option.name for option in positional}
    values: dict[str, Any] = {}
    free: list[str] = []
    behind: dict[int, str] = {}
    """Index in `free` -> what is wrong there, if it was to be a value of the option before it."""
    wrong = ""
    rest, unknown_ones = list(arguments), list[str]()
    while rest:
        word = rest.pop(0)
        if _is_value(word):
            if wrong:
                behind[len(free)] = wrong.format(word=word)
            elif told := _assigned(word, known):
                behind[len(free)] = told
            free.append(word)
            wrong = ""
            continue
        written, equals, text = word.partition("=")
        key = written.removeprefix("--shaping.") if "shaping" in options else written
        try:
            option, negated = _find(written if key == written else "--shaping", options, known, prog)
        except ConfigError as error:  # a command of another trainer has several
            unknown_ones.append(str(error))
            while rest and _is_value(rest[0]):
                rest.pop(0)
            continue
        given = [text] if equals else _taken(option, rest)
        if key != written:
            given = [f"{key}={_number(written, given)}"]
        value = _read(option, written, given)
        if negated:
            value = not value
        wrong = f"{written} {{word}} cannot be used: give true or false" * (option.bare is bool and not given)
        if option.name == "model.hidden":
            wrong = "{word!r} belongs to no option: --model.hidden is one width, --model.layers the number of layers"
        if is_repeated(option):
            value = values.get(option.field, ()) + value
            wrong = (
                f"{{word!r}} belongs to no option: give {written} once for each value, {written} {{word}} too"
            )
        elif is_list(option) and option.field in values:
            raise ConfigError(f"{written} is given twice: give all of its values after one {written}")
        values[option.field] = value
    if unknown_ones:
        raise ConfigError("\n".join(unknown_ones))
    values |= _placed(positional, free, behind, prog)
    return values


def _assigned(word: str, known: Collection[str]) -> str:
    """Return what to write for NAME=VALUE without dashes, as Hydra has it; nothing if NAME is no option."""
    name, equals, value = word.partition("=")
    option = OTHER_NAMES.get(spelt(name).rpartition(".")[2], spelt(name))
    return f"{word!r} belongs to no option: write --{option} {value}" if equals and option in known else ""


def _number(written: str, given: Sequence[str]) -> float:
    """Return the number that follows --shaping.NAME. Raises ConfigError."""
    if not given:
        raise ConfigError(f"{written} needs a value")
    try:
        return number(given[0])
    except ValueError as remedy:
        raise ConfigError(f"{written} {given[0] or repr('')} cannot be used: give {remedy}") from None


def _placed(
    positional: Sequence[Option], free: Sequence[str], behind: Mapping[int, str], prog: str
) -> dict[str, Any]:
    """Return the values of positional options. behind: index of a word -> what is wrong if it is none of them."""
    if any(is_list(option) for option in positional):
        (option,) = positional
        return {option.field: _read(option, option.name.upper(), free)} if free else {}
    if len(free) > len(positional):
        first = len(positional)
        raise ConfigError(behind.get(first, f"{free[first]!r} belongs to no option; {prog} --help"))
    return {
        option.field: _read(option, option.name.upper(), [word])
        for option, word in zip(positional, free, strict=False)
    }


def is_repeated(option: Option) -> bool:
    """Whether it is given once for each of its values."""
    return REPEATED in option.marks


def is_list(option: Option) -> bool:
    """Whether any number of values follows it."""
    return get_origin(option.bare) is tuple and not is_repeated(option)


def _is_value(word: str) -> bool:
    """Whether a word is a value, or begins an option."""
    return not word.startswith("-") or VALUE.match(word) is not None


def without(words: Sequence[str], names: Collection[str]) -> list[str]:
    """Return words without the options of these names and the values that follow them."""
    kept, leaves_out = [], False
    for word in words:
        leaves_out = leaves_out if _is_value(word) else spelt(word.partition("=")[0]) in names
        kept += [] if leaves_out else [word]
    return kept


def _find(written: str, options: Mapping[str, Option], known: set[str], prog: str) -> tuple[Option, bool]:
    """Return the option that is written, and whether it is switched off by `no-`."""
    name = spelt(written) if written.startswith("--") else ""
    if name in known:
        return options[name], False
    path, dot, last = name.rpartition(".")
    switched = f"{path}{dot}{last.removeprefix('no-')}"
    if last.startswith("no-") and switched in known and options[switched].bare is bool:
        return options[switched], True
    line = unknown(written, known)
    if name.partition(".")[0] in ("env", "env-option", "algo", "model") and "run" in options:
        line = f"{written} is no option: the run's config.json names it, so leave it out"
    more = "-all" if prog.endswith("train") else ""
    raise ConfigError(line if ":" in line or "?" in line else f"{line}; {prog} --help{more} lists them")


def _taken(option: Option, rest: list[str]) -> list[str]:
    """Take the values of an option from the words that follow it."""
    taken: list[str] = []
    while rest and _is_value(rest[0]):
        if option.bare is bool and rest[0].lower() not in YES + NO:
            break
        taken.append(rest.pop(0))
        if not is_list(option):
            break
    return taken


def _read(option: Option, written: str, given: Sequence[str]) -> Any:
    """Return the value of an option in its type. Raises ConfigError."""
    if option.bare is bool:
        text = given[0].lower() if given else YES[0]
        if text not in YES + NO:
            raise ConfigError(f"{written} {given[0]} cannot be used: give true or false")
        return text in YES
    if not given and not is_list(option):
        remedy = option.metadata.get("remedy")
        raise ConfigError(f"{written} needs a value{f': give {remedy}' if remedy else ''}")
    values = []
    for text in given:
        try:
            values.append(_value(option, text))
        except ValueError as remedy:
            raise ConfigError(f"{written} {text or repr(text)} cannot be used: give {remedy}") from None
    return tuple(values) if get_origin(option.bare) is tuple else values[0]


def _value(option: Option, text: str) -> Any:
    """Return one value. Raises ValueError whose text is the remedy."""
    hint = option.bare
    if isinstance(hint, UnionType):
        if text.lower() == "none":
            return None
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        names = get_args(hint)
        if text in names:
            return text
        guess = meant(option.name, text, names).strip("; ")
        raise ValueError(allowed({"choices": lambda: names}) + (f" ({guess})" if guess else ""))
    if text.lower() == option.metadata.get("off"):
        return option.metadata["at_most"]
    return reader(option.name, hint)(text)


def value_of(arguments: Sequence[str], name: str) -> str | None:
    """Return the last value of an option, before anything is parsed."""
    found = None
    for i, argument in enumerate(arguments):
        written, equals, value = argument.partition("=")
        if not written.startswith("--") or spelt(written) != spelt(name):
            continue
        if equals:
            found = value
        elif i + 1 < len(arguments):
            found = arguments[i + 1]
    return found


# -- help ------------------------------------------------------------------------------------------------------
#
# tyro draws a dataclass. So one is made that has only the options to show, each with its docstring, its allowed values
# and its default.


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
    return f"{name} [{name} ...]" if is_list(option) else name
