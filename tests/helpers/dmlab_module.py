"""DeepMind Lab for tests: the real module where it is installed, else the stand-in, for us and for our children."""

import json
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import runs

STANDIN = Path(__file__).parent.parent / "dmlab_standin"
REAL = find_spec("deepmind_lab") is not None
standin_only = pytest.mark.skipif(REAL, reason="the installed engine cannot be made to do this")


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """A folder for temporary files, in which nothing may be left; the module is found, the cache is in `tmp_path`."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if REAL:
        paths = [runs.ENVIRONMENT["PYTHONPATH"], *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setitem(runs.ENVIRONMENT, "PYTHONPATH", os.pathsep.join(paths))
    else:
        monkeypatch.syspath_prepend(STANDIN)
        paths = [runs.ENVIRONMENT["PYTHONPATH"], str(STANDIN)]
        monkeypatch.setitem(runs.ENVIRONMENT, "PYTHONPATH", os.pathsep.join(paths))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        monkeypatch.setenv("DMLAB_STANDIN_LOG", str(tmp_path / "calls"))
    yield scratch
    if not REAL:
        sys.modules.pop("deepmind_lab", None)
    left = [path for path in scratch.iterdir() if "dmlab" in path.name]
    assert not left, f"left behind: {left}"


def calls(lab, kind):
    """What the stand-in was asked, in order."""
    lines = (lab.parent / "calls").read_text().splitlines()
    return [call for call in map(json.loads, lines) if call["kind"] == kind]
