"""The loop that docs/architecture.md quotes is the one that serial mode runs."""

import inspect
import re
from pathlib import Path

from pbt_rl.run.serial import train_serially

PAGE = Path(__file__).parents[2] / "docs/architecture.md"


def test_the_page_quotes_the_loop(pytestconfig):
    code, page = inspect.getsource(train_serially), PAGE.read_text()
    first = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    if pytestconfig.getoption("--rewrite-golden"):
        PAGE.write_text(page.replace(first[1], code, 1))
    assert first[1] == code, (
        f"pytest {Path(__file__).relative_to(PAGE.parents[1])} --rewrite-golden updates the page"
    )
    assert len(code.splitlines()) <= 80
