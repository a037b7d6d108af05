"""The page about resuming names the options that may change: those that the code says."""

import re

from pbt_rl.cli.resume import may_change
from tests.helpers.runs import ROOT


def test_the_page_lists_the_options_that_may_change():
    text = (ROOT / "docs" / "operate.md").read_text()
    paragraph = next(p for p in text.split("\n\n") if p.endswith("all of `--pbt.*`."))
    listed = re.findall(r"`--([a-z.-]+)`", paragraph)
    assert sorted(listed) == sorted(name for name in may_change() if not name.startswith("pbt."))
