"""Children of a test."""

import os
from pathlib import Path

import pytest

from pbt_rl.processes.child import Child


@pytest.fixture
def child(tmp_path, monkeypatch, request):
    """Return a function that starts a child with CODE of the test's module. Children end with the test."""
    (tmp_path / "child_of_the_test.py").write_text(request.module.CODE)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path.cwd())]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    started = []

    def start(*setup, fds=(), log=None):
        started.append(Child("child_of_the_test", "the child", setup, fds, log))
        return started[-1]

    yield start
    for one in started:
        one.end(0)
