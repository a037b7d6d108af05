"""Renamed and removed options. Files and saved runs may contain these options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {
    "dmlab.one-level-per-unit": "dmlab.one-level-per-vector-env",
    "envs-per-unit": "envs-per-vector-env",
    "model.deviation": "model.action-std",
    "model.initial-deviation": "model.initial-std",
    "units-per-actor": "vector-envs-per-actor",
}
"""Former name -> present name. On the command line, a former name raises an error with the present name."""
REMOVED: Mapping[str, object] = {"copy_seconds": 30.0}
"""Removed option -> former default. A saved run may contain any value, which is ignored. A --config file may contain
only the former default."""

_FIELDS = {old.replace("-", "_"): new.replace("-", "_") for old, new in RENAMED.items()}


def present_field(field: str) -> str:
    """Return the present dotted field of an option. field: present or former dotted field."""
    return _FIELDS.get(field, field)


def present_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a config with today's option names and without removed options.

    config: content of a config.json, with option groups as nested mappings.
    prefix: `GROUP.` if `config` contains the options of a group.
    """
    return {
        present_field(f"{prefix}{name}").removeprefix(prefix): present_config(value, f"{name}.")
        if isinstance(value, Mapping) and not prefix
        else value
        for name, value in config.items()
        if f"{prefix}{name}" not in REMOVED
    }
