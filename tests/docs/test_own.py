"""Pages about what is one's own run as they are printed."""

import re
import shlex

import pytest

from tests.helpers.runs import ROOT, start


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("your-algorithm-or-rule.md", "frames"),
        ("reference/network.md", "objective"),
        ("reference/rules.md", " decisions"),
        ("reference/simulators.md", "objective"),
    ],
)
def test_the_page_runs_as_it_is_printed(tmp_path, page, found):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        name = re.match(r"# (\w+\.py)\n", block)[1]
        (tmp_path / name).write_text(block)
    commands = [shlex.split(block) for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]
    assert len(commands) >= 2
    for command in commands:
        run = start(tmp_path, *command[1:], *["--no-figures"] * (command[1] == "train"))
        assert run.wait() == 0, f"{command}:\n{run.out}\n{run.err}"
        assert all("of your own run" in line for line in run.err.splitlines())
    assert found in run.out
