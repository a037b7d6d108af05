"""Options in files and mappings.

Files are TOML, YAML or JSON, such as the config.json of a run. An option group is a table (TOML) or a nested mapping.

Reading a file does not execute code. `pbt-rl train` imports the modules that a file names (custom environments,
encoders, rules), as it imports modules that are named on the command line.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import yaml

from pbt_rl.errors import ConfigError
from pbt_rl.options.declare import Option
from pbt_rl.options.names import unknown
from pbt_rl.options.renamed import REMOVED, present_field
from pbt_rl.options.values import as_type, free_value, reader

Format = Literal["json", "toml", "yaml"]


def text_of(path: Path) -> str:
    """Return the text of a UTF-8 file, or of a UTF-16 file with byte order mark.

    Raises OSError or UnicodeDecodeError if the file cannot be read or decoded.
    """
    content = path.read_bytes()
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig")


def _unique(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Build a mapping. Raises ValueError for a duplicate key, because one value would be lost."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} is given twice")
        found[key] = value
    return found


def json_of(text: str) -> Any:
    """Parse JSON. Raises ValueError for invalid JSON and for duplicate keys."""
    return json.loads(text, object_pairs_hook=_unique)


class _Yaml(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """YAML loader that rejects duplicate keys. As in YAML 1.2, 1e6 is a number, and 1:30 is a text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        _unique((self.construct_object(key, deep=True), None) for key in keys)
        return found


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_CLOCK = re.compile(r"\d+(:\d+)+(\.\d*)?$")  # YAML 1.1 reads 1:30 as 90, regardless of the unit
_Yaml.yaml_implicit_resolvers = {
    first: [("tag:yaml.org,2002:str", _CLOCK), *others]
    for first, others in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))

READERS: Mapping[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".json": json_of,
    ".yaml": lambda text: yaml.load(text, _Yaml),  # noqa: S506 - a SafeLoader
    ".yml": lambda text: yaml.load(text, _Yaml),  # noqa: S506
}


def read_file(path: Path) -> dict[str, Any]:
    """Read a file of options as a nested mapping.

    Raises ConfigError if the file cannot be read or parsed, has another ending than those of READERS, or contains no
    mapping.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise _refusal(path, f"its name must end in {', '.join(READERS)}")
    try:
        content = reader(text_of(path))
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:  # RecursionError: nested too deeply
        raise _refusal(
            path, f"it is not valid {path.suffix[1:].upper()}: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(content, dict):
        raise _refusal(path, "it must contain pairs of NAME and VALUE, and groups as tables")
    return {str(name): value for name, value in content.items()}


def written(config: Mapping[str, Any], form: Format) -> str:
    """Format a config as the text of a --config file. Leave out options whose value is None.

    config: JSON types, with option groups as nested mappings.
    """
    content = _given(config)
    if form == "json":
        return json.dumps(content, indent=2) + "\n"
    if form == "yaml":
        text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        return text
    groups = {name: value for name, value in content.items() if isinstance(value, dict)}
    lines = _toml({name: value for name, value in content.items() if name not in groups})
    for name, group in groups.items():
        lines += ["", f"[{name}]", *_toml(group)]
    return "\n".join(lines) + "\n"


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert tuples to lists, and mappings to dicts. Leave out values that are None."""
    plain: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            plain[name] = _given(value)
        elif value is not None:
            plain[name] = list(value) if isinstance(value, tuple) else value
    return plain


def _toml(options: Mapping[str, Any]) -> list[str]:
    """Format options as TOML lines.

    Numbers, booleans, texts and lists have the same syntax in JSON and TOML, except for the character DEL in a text.
    """
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False).replace(chr(127), chr(92) + 'u007f')}"
        for name, value in options.items()
    ]


def _refusal(path: Path, remedy: str) -> ConfigError:
    return ConfigError(f"--config {path} cannot be used: {remedy}")


# -- options by dotted name ---------------------------------------------------------------------------------


def checked(
    given: Mapping[str, Any], options: Mapping[str, Option], path: Path | None = None
) -> dict[str, Any]:
    """Convert nested mappings and option groups to dotted field -> value, with values of the options' types.

    As on the command line, names may contain `-` instead of `_`, and numbers may be texts. Raises ConfigError for an
    unknown name, a name that is given twice, or a value of another type.

    path: file that contained the options, for the error message.
    """
    try:
        return _checked(given, {option.field: option for option in options.values()})
    except ConfigError as error:
        raise error if path is None else _refusal(path, str(error)) from error


def _checked(given: Mapping[str, Any], known: Mapping[str, Option]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for written_name, value in _dotted(given, known):
        name = present_field(written_name.replace("-", "_"))
        if name in REMOVED and value == REMOVED[name]:  # the config.json of an earlier version contains it
            continue
        if any(key.startswith(f"{name}.") for key in known):
            raise ConfigError(f"{name}={value!r} cannot be used: give the options of this group by name")
        if name not in known:
            line = unknown(written_name, [option.name for option in known.values()], sign="").replace(
                "-", "_"
            )
            raise ConfigError(f"{line}; see `pbt-rl train --help-all`")
        if name in values:
            raise ConfigError(f"{name} is given twice")
        try:
            values[name] = as_type(known[name].hint, _number(known[name], value))
        except ValueError as kind:
            raise ConfigError(f"{name}={value!r} cannot be used: give {kind}") from None
    return values


def _dotted(
    given: Mapping[str, Any], known: Mapping[str, Option], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) for each option in nested mappings and groups.

    If an option has values NAME=VALUE, a mapping is converted to these values.
    """
    for key, unread in given.items():
        name, value = f"{prefix}{key}", _group(unread)
        option = known.get(name.replace("-", "_"))
        if option is not None and option.holds_pairs and isinstance(value, Mapping):
            yield name, [f"{word}={_as_text(name, meaning)}" for word, meaning in value.items()]
        elif isinstance(value, Mapping) and not prefix:
            yield from _dotted(value, known, f"{name}.")
        elif is_dataclass(value):  # a whole group, such as learner=LearnerConfig(...)
            yield from ((f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value))
        else:
            yield name, value


def _group(value: Any) -> Any:
    """Convert an option group of argparse, pydantic or ml_collections to a mapping. Other values stay unchanged."""
    if isinstance(value, Namespace | SimpleNamespace):
        return vars(value)
    for method in ("model_dump", "to_dict"):
        if not isinstance(value, type | Mapping) and callable(getattr(value, method, None)):
            return getattr(value, method)()
    return value


def _as_text(name: str, value: Any) -> str:
    """Format VALUE of NAME=VALUE in command-line syntax. A text that `free_value` would change gets quotes.

    Raises ConfigError for a value that JSON cannot represent.
    """
    try:
        free = isinstance(value, str) and free_value(value) == value
        return value if free else json.dumps(value, default=_plain)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{name} cannot contain {value!r:.200}: give numbers, texts, booleans, lists or dicts"
        ) from None


def _plain(value: Any) -> Any:
    """Convert NumPy scalars and arrays, paths, enums and collections to JSON types.

    Raises TypeError for a value of any other type.
    """
    match value:
        case Enum():
            return value.value
        case os.PathLike():
            return os.fspath(value)
        case Mapping():
            return dict(value)
        case AbstractSet():
            return sorted(value)
        case bytes() | bytearray() | memoryview():
            raise TypeError(value)
        case Sequence():
            return list(value)
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(value)
    return tolist()


def _number(option: Option, value: Any) -> Any:
    """Convert a text to a number if the option is a number, because YAML parses 1M as a text.

    Some options have a word for "no limit", usually `off`, which YAML parses as False. The word and False become the
    option's maximum (`at_most`).
    """
    metadata = option.metadata
    if "off" in metadata and (value is False or value == metadata["off"]):
        return metadata["at_most"]
    is_text = option.scalar in (int, float) and isinstance(value, str)
    return reader(option.name, option.scalar)(value) if is_text else value
