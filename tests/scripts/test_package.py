"""Wheel and sdist hold everything: installed without a checkout, they train."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "scripts"))

import package_check


@pytest.mark.slow
def test_the_wheel_trains_without_a_checkout(tmp_path):
    done = subprocess.run(
        [sys.executable, "scripts/package_check.py", "--own", "--out", str(tmp_path)],
        cwd=package_check.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sdist" in done.stdout
    assert {path.suffix for path in tmp_path.iterdir()} == {".whl", ".gz"}


def test_links_of_the_readme_work_on_the_page_of_an_index():
    text = package_check.absolute((package_check.ROOT / "README.md").read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    assert f"]({package_check.REPOSITORY}/raw/main/docs/forest.png)" in text


def test_a_wheel_that_lacks_a_module_is_refused(tmp_path):
    wheel = tmp_path / "x.whl"
    with ZipFile(wheel, "w") as file:
        file.writestr("pbt_rl/__init__.py", "")
    with pytest.raises(SystemExit, match=r"lacks \['pbt_rl/__main__\.py', .*'pbt_rl/envs/toy\.py'"):
        package_check.check_contents(wheel)
