"""What the journal says of the program that made a run."""

from pbt_rl.provenance.versions import git_version, versions


def test_versions_name_what_is_installed_without_importing_torch():
    assert {"pbt_rl", "python", "torch", "gymnasium"} <= versions().keys()
    git = git_version()
    assert git is None or len(git.removesuffix("-dirty")) == 40
