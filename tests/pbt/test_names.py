"""What `pbt_rl.pbt` offers by name."""

import importlib

import pytest

from pbt_rl import pbt


@pytest.mark.parametrize("module", pbt._MODULES)
def test_every_name_is_of_its_module(module):
    home = importlib.import_module(f"pbt_rl.pbt.{module}")
    for name in pbt._MODULES[module].split():
        assert getattr(pbt, name) is getattr(home, name)


def test_an_unknown_name_is_refused():
    with pytest.raises(ImportError, match="NoSuchRule"):
        from pbt_rl.pbt import NoSuchRule  # noqa: F401
