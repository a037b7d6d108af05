"""`scripts/docs_site.py`: the gathered pages are those of the navigation, and lead to each other."""

import importlib
import os
import re
import sys

import pytest
import yaml

from tests.helpers.runs import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the gathered pages."""
    sys.path.insert(0, str(ROOT / "scripts"))
    module = importlib.import_module("docs_site")
    sys.path.remove(str(ROOT / "scripts"))
    out = tmp_path_factory.mktemp("build") / "docs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "OUT", out)
        module.main()
    return out


def test_the_navigation_names_every_page(site):
    def pages(nav):
        for entry in nav if isinstance(nav, list) else nav.values():
            yield from [entry] if isinstance(entry, str) else pages(entry)

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages(nav)) == sorted(str(path.relative_to(site)) for path in site.rglob("*.md"))


def test_links_between_pages_lead_somewhere(site):
    followed = 0
    for page in site.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            name = link.partition("#")[0]
            if name and "://" not in name:
                assert os.path.exists(page.parent / name), f"{page.name}: {link}"  # noqa: PTH110 - with ..
                followed += 1
    assert followed > 50
    assert "](results.md)" in (site / "lab" / "papers.md").read_text()
