"""Options in files: TOML, YAML or JSON, also the config.json of another run. Nested as the config: groups are tables.

Reading a file executes nothing of it. Modules that it names (an environment, an encoder, a rule of one's own) are
imported when it is trained with, as if they had been typed.
"""

from __future__ import annotations

import codecs
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from pbt_rl.api.values import checked
from pbt_rl.cli.parse import value_of
from pbt_rl.errors import ConfigError
from pbt_rl.options import path_given

Format = Literal["json", "toml", "yaml"]


def text_of(path: Path) -> str:
    """Return a file's text, with or without a byte order mark. Raises OSError, or ValueError for another encoding."""
    content = path.read_bytes()
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if wide else "utf-8-sig")


def _unique(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a mapping. Raises ValueError for a key that is given twice: one of its values would be lost."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} is given twice")
        found[key] = value
    return found


def json_of(text: str) -> Any:
    """Read JSON. Raises ValueError, also for a key that is given twice."""
    return json.loads(text, object_pairs_hook=_unique)


class _Yaml(yaml.SafeLoader):  # type: ignore[misc]
    """YAML in which a key stands once, 1e6 is a number and 1:30 a text, as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        _unique((self.construct_object(key, deep=True), None) for key in keys)
        return found


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_CLOCK = re.compile(r"\d+(:\d+)+(\.\d*)?$")  # YAML 1.1 reads 1:30 as 90, whatever the unit is
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
    """Return what stands in a file of options. Raises ConfigError."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise _refusal(path, f"its name must end in {', '.join(READERS)}")
    try:
        content = reader(text_of(path))
    except OSError as error:
        raise _refusal(path, error.strerror or str(error)) from error
    except (ValueError, yaml.YAMLError) as error:
        raise _refusal(path, f"it is no {path.suffix[1:].upper()}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise _refusal(path, "it holds no options; write NAME and VALUE pairs, groups as tables")
    return {str(name): value for name, value in content.items()}


def read_config(path: Path, algo: str = "") -> dict[str, Any]:
    """Return dotted name of an option -> value, of those in the file. algo: as for `checked`. Raises ConfigError."""
    content = read_file(path)
    try:
        return checked(content, texts=True, algo=algo)
    except ConfigError as error:
        raise _refusal(path, str(error)) from error


def written(config: Mapping[str, Any], form: Format) -> str:
    """Return a config (`record.folder.to_json`) as a file that `read_config` reads. None is left out."""
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
    """Return plain types without None."""
    plain = {
        name: _given(value)
        if isinstance(value, Mapping)
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in config.items()
    }
    return {name: value for name, value in plain.items() if value is not None}


def _toml(options: Mapping[str, Any]) -> list[str]:
    """Write options that are numbers, truths, texts or lists of these: for them JSON is TOML."""
    return [
        f"{name} = {json.dumps(value, ensure_ascii=False).replace(chr(127), chr(92) + 'u007f')}"
        for name, value in options.items()
    ]


def _refusal(path: Path, remedy: str) -> ConfigError:
    return ConfigError(f"--config {path} cannot be used: {remedy}")


class InFile:
    """What stands in a file of options. algo: the algorithm that it names, else nothing."""

    def __init__(self, path: Path) -> None:
        self._path, self.algo = path, str(read_file(path).get("algo", ""))

    def values(self, algo: str) -> dict[str, Any]:
        """Return dotted name of an option -> value. algo: whose hypers there are."""
        return read_config(self._path, algo)


def file_of_options(arguments: Sequence[str]) -> list[InFile]:
    """Return the file that `--config` names, which lies over the recipes and below what is typed; or none.

    Raises ConfigError.
    """
    path = value_of(arguments, "--config")
    return [] if path is None else [InFile(path_given("--config", path))]
