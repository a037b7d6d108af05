"""Without --nodes nothing of Ray is loaded; without Ray --nodes is one clear error."""

import subprocess
import sys

import pytest

from pbt_rl.config.command import parse_train
from pbt_rl.errors import ConfigError
from pbt_rl.run.train import train

LOADED = "import sys, pbt_rl.run.nodes.node_fleet, pbt_rl.run.train, pbt_rl.cli.train; sys.exit('ray' in sys.modules)"


def test_a_run_on_one_machine_imports_no_ray():
    assert subprocess.run([sys.executable, "-c", LOADED], check=False).returncode == 0


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "pbt_rl.run.nodes.ray_backend", raising=False)
    config = parse_train(["--env=toy/shaped", "--nodes=ray:auto"])
    with pytest.raises(ConfigError, match=r"--nodes ray:auto .*'pbt-rl\[ray\]'"):
        train(config)
