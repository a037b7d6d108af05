"""`pbt-rl envs`: list the environments."""

from __future__ import annotations

import textwrap

from pbt_rl.cli import commands
from pbt_rl.envs.packages import absent
from pbt_rl.envs.registry import FAMILIES, plugins
from pbt_rl.errors import ConfigError


def run(arguments: list[str]) -> int:
    """List the environments."""
    if arguments in (["--help"], ["-h"]):
        print(
            "usage: pbt-rl envs                  list the environments, what is missing and how to install it"
        )
        print("\n".join(f"       {line}" for line in _others()))
        return 0
    if arguments:
        raise ConfigError(f"pbt-rl envs takes nothing, not {' '.join(arguments)!r}")
    for family in FAMILIES.values():
        if not family.missing:
            names = family.names()
            print(f"{family.name}/  {family.title}: {len(names)} here, such as --env {family.example}")
            print(_wrapped(names))
        else:
            print(
                f"{family.name}/  {family.title}: missing {', '.join(family.missing)}; {family.install_hint}"
            )
    print(absent(), end="")
    print("your own  --env module:factory (docs/your-environment.md)")
    print("\n".join(_others()))
    if plugins():
        print(_wrapped(tuple(sorted(plugins()))))
    return 0


def _others() -> list[str]:
    """Return a line for each other command about environments."""
    return [
        f"{f'pbt-rl {command.name} {command.arguments}':<28} {command.help} ({command.name} --help)"
        for command in commands().values()
        if command.name.startswith("envs ")
    ]


def _wrapped(names: tuple[str, ...]) -> str:
    return textwrap.fill(
        ", ".join(names), 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
