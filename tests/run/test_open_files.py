"""The limit of open files: what a run needs, the soft limit that is raised, and the error if that does not suffice."""

import resource
from pathlib import Path

import pytest

from pbt_rl.config.command import parse_train
from pbt_rl.errors import ConfigError
from pbt_rl.run import fleet
from pbt_rl.run import limits as module
from pbt_rl.run.limits import COMFORTABLE, RESERVE, SEGMENTS, allow_open_files, descriptors_needed
from pbt_rl.run.train import train
from tests.helpers.plans import fresh, resolved


@pytest.fixture
def limit(monkeypatch):
    """Pretend other limits; returns a function that sets them, and the list of those that were asked for."""
    asked = []

    def pretend(soft, hard):
        monkeypatch.setattr(module.resource, "getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr(module.resource, "setrlimit", lambda _, limits: asked.append(limits))
        return asked

    return pretend


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (64, 4096, (4096, 4096)),
        (64, 1 << 20, (COMFORTABLE, 1 << 20)),
        (64, resource.RLIM_INFINITY, (COMFORTABLE, resource.RLIM_INFINITY)),
        (COMFORTABLE, 1 << 20, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_soft_limit_is_raised(limit, soft, hard, raised):
    asked = limit(soft, hard)
    allow_open_files(1)
    assert asked == ([raised] if raised else [])


def test_a_hard_limit_that_does_not_suffice_is_one_clear_error(limit, tmp_path):
    limit(64, 64)
    with pytest.raises(ConfigError, match=r"files.* 64 .*ulimit -Hn"):
        allow_open_files(100)
    config = parse_train(["--env=toy/identity", "--num-policies=40", f"--out={tmp_path / 'runs'}"])
    with pytest.raises(ConfigError, match=r"files.*ulimit"):
        train(config)
    assert not (tmp_path / "runs").exists()


def test_a_fleet_opens_as_many_files_as_were_estimated(monkeypatch):
    monkeypatch.setattr(fleet, "GRACE_SECONDS", 0.0)
    options = ("--num-policies=4", "--actors=4", "--devices=cpu,cpu", "--vector-envs-per-actor=3")
    run = resolved("toy/identity", *options)
    before = open_files()
    started = fleet.ProcessFleet(run, fresh(run))
    opened = open_files() - before
    started.close()
    del started  # and with it the maps
    assert open_files() == before
    record = 4 + 6
    assert opened == descriptors_needed(run.plan, 4, 1) - RESERVE - record - SEGMENTS
