"""The page about resuming names every option that may change."""

from pathlib import Path

from pbt_rl.config import Config
from pbt_rl.options import walk

PAGE = (Path(__file__).parent.parent.parent / "docs" / "resuming.md").read_text()


def test_all_options_that_may_change_are_listed():
    listed = PAGE.partition("## What may change")[2]
    may_change = {
        name for name, metadata, _ in walk(Config(env="toy/identity")) if metadata.get("may_change")
    }
    missing = {name for name in may_change if not name.startswith("pbt.") and f"`--{name}`" not in listed}
    assert may_change
    assert not missing
