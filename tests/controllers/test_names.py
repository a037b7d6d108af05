"""What `pbt_rl.controllers` offers by name."""

import importlib

import pytest

from pbt_rl import controllers


@pytest.mark.parametrize("module", controllers._MODULES)
def test_every_name_is_of_its_module(module):
    home = importlib.import_module(f"pbt_rl.controllers.{module}")
    for name in controllers._MODULES[module].split():
        assert getattr(controllers, name) is getattr(home, name)


def test_an_unknown_name_is_refused():
    with pytest.raises(ImportError, match="NoSuchRule"):
        from pbt_rl.controllers import NoSuchRule  # noqa: F401
