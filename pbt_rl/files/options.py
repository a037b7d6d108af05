"""Options of `pbt-rl train` about files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pbt_rl.options import option


@dataclass(frozen=True)
class FileOptions:
    """Options from a file, or written as one."""

    format: Literal["text", "toml", "yaml", "json"] = "text"
    """With --show: print the whole config instead, as a file for --config."""
    config: Path | None = option(None, common=True)
    """File of options, FILE.toml, FILE.yaml or FILE.json, such as runs/NAME/config.json. The command line wins."""
