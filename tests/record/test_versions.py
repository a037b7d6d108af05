"""What the journal says of the program that made a run."""

import json

import numpy as np

from pbt_rl.record.journal import Journal, git_version, versions


def test_versions_name_what_is_installed_without_importing_torch():
    assert {"pbt_rl", "python", "torch", "gymnasium"} <= versions().keys()
    git = git_version()
    assert git is None or len(git.removesuffix("-dirty")) == 40


def test_they_stand_in_the_first_event(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.start({}, 0, {})
    journal.close()
    (line,) = (tmp_path / "j").read_text().splitlines()
    event = json.loads(line)
    assert event["versions"]["numpy"] == np.__version__
    assert list(event) == ["event", "time", "frames", "config", "seed", "versions", "git", "spec"]
