"""The page for those who come from Sample Factory: its commands run, its old names are answered with the new ones."""

from __future__ import annotations

import re

import pytest

from pbt_rl.config.command import parse_train
from pbt_rl.errors import ConfigError
from tests.helpers import runs
from tests.helpers.dmlab_module import lab  # noqa: F401 - a fixture

PAGE = runs.ROOT / "docs" / "reference" / "from-sample-factory.md"
HERE_TOO = {"--num_policies", "--train_for_seconds", "--keep_checkpoints", "--seed"}
"""Options that have the same name here."""
NO_OPTION = {"--env", "--pbt_target_objective"}


def renamed():
    """Old name -> new names in its rows of the table."""
    found = {}
    rows = [
        line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `--")
    ]
    for _, old, new, _ in rows:
        names = re.findall(r"--[a-z][a-z0-9.-]*", new)
        for name in re.findall(r"--[a-z][a-z0-9_]*", old):
            if name not in HERE_TOO | NO_OPTION:
                found[name] = [*found.get(name, []), *names]
    return found


@pytest.mark.parametrize("old", renamed())
def test_an_old_name_is_answered_with_a_new_one_of_its_row(old):
    with pytest.raises(ConfigError, match=rf"^Unknown option {old}\. ") as answered:
        parse_train(["--env=toy/identity", f"{old}=1"])
    first = re.findall(r"--[a-z][a-z0-9.-]*", str(answered.value).partition(". ")[2])[0]
    assert first in renamed()[old]
