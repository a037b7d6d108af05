"""Declares what draws the help of `pbt-rl train`."""

from __future__ import annotations

from typing import Any


def DRAWS_HELP(command: Any, prog: str, arguments: list[str]) -> None:
    """Print the options of a command. Its values are shown as defaults; arguments: say which options."""
    from pbt_rl.help.draw import print_help  # noqa: PLC0415 - actors read this module

    print_help(command, prog, arguments)
