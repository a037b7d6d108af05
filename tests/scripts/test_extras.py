"""The core knows none of its extras: a copy of the code without one, or without any, is whole."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers import deletions
from tests.helpers.deletions import (
    ALL,
    Extra,
    badly_refused,
    complaints_of_rooms,
    copy,
    extras,
    python,
    remove,
    unimportable,
    untrained,
)

EXTRAS = extras()
OF_NO_ROOM = (
    "tests/docs",
    "tests/scripts",
    "scripts/lab",
    "scripts/bench.py",
    "scripts/gpu_check.py",
    "scripts/gpu_recording.py",
    "scripts/gpu_runs.py",
    "scripts/gpu_stages.py",
    "scripts/gpu_stand.py",
    "scripts/resident_bench.py",
    "scripts/storm.py",
    "scripts/storm_checks.py",
    "scripts/storm_counting.py",
)
"""Not the core's: they are about pages and scripts, which know all extras, or stand on such."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A copy with all extras."""
    return copy(tmp_path_factory.mktemp("whole") / "tree")


@pytest.fixture(scope="module")
def unimportable_anyway(whole):
    """What cannot be imported in the whole copy either: programs, and what needs packages that are not here."""
    return set(unimportable(whole))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("folder", EXTRAS)
def test_a_copy_without_an_extra_is_whole(folder, whole, unimportable_anyway, tmp_path):
    tree = copy(tmp_path / "tree")
    gone = remove(tree, [folder])
    assert set(extras(tree)) == set(EXTRAS) - gone
    if not EXTRAS[folder].asked:  # one of Python alone
        assert python(tree, "-c", f"import pbt_rl; pbt_rl.{tree.joinpath(folder).name}").returncode == 1
    wrong = complaints_of_rooms(tree)
    wrong += [line for line in unimportable(tree) if line not in unimportable_anyway]
    wrong += untrained(tree)
    for command in EXTRAS[folder].asked:
        wrong += badly_refused(whole, tree, command)
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A copy without any extra and without their tests."""
    tree = copy(tmp_path_factory.mktemp("bare") / "tree", names=ALL)
    remove(tree, extras(tree))
    for name in OF_NO_ROOM:
        shutil.rmtree(tree / name) if (tree / name).is_dir() else (tree / name).unlink()
    assert not extras(tree)
    return tree


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_core_alone_trains_and_passes_every_check(bare, unimportable_anyway):
    assert [line for line in unimportable(bare) if line not in unimportable_anyway] == []
    assert untrained(bare) == []
    done = python(bare, "scripts/check.py", seconds=800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_core_alone_passes_its_own_tests(bare):
    """Whole runs beside all the rest, as each leaves a core idle: five minutes on two quiet cores."""
    marks = "not slow and not long and not nodes"
    words = ("-m", "pytest", "-q", "-m", marks, "-p", "no:cacheprovider", "--maxfail=20")

    def passed(folders):
        return python(bare, *words, *folders, seconds=3500)

    with ThreadPoolExecutor() as pool:
        done = list(pool.map(passed, (["tests/run"], ["tests", "--ignore=tests/run"])))
    assert all(one.returncode == 0 for one in done), "\n".join(one.stdout[-6000:] for one in done)


COMMAND = """
import sys
from pathlib import Path
from importlib import import_module
def main():
    words = sys.argv[1:]
    if words[0] == "lab":
        try:
            import_module("pbt_rl.lab.command")
        except ModuleNotFoundError:
            print("pbt-rl: lab is not there", file=sys.stderr)
            sys.exit(2)
    if words[0] == "slow":
        import time
        if not Path("pbt_rl/lab").exists():
            print("pbt-rl: slow is not there", file=sys.stderr)
            sys.exit(2)
        time.sleep(60)
    if words[0] == "odd":
        print("one", "two", sep="\\n", file=sys.stderr)
        sys.exit(2)
    if words[0] == "vague":
        print("pbt-rl: no", file=sys.stderr)
        sys.exit(2)
"""
SMALL = {
    "scripts/rooms.py": "def complaints(root):\n    return ['a complaint'] if (root / 'bad').exists() else []\n",
    "envs/base.py": "",
    "pbt_rl/__init__.py": "",
    "pbt_rl/__main__.py": "from pbt_rl.main import main\nmain()\n",
    "pbt_rl/main.py": COMMAND,
    "pbt_rl/lab/__init__.py": "",
    "pbt_rl/lab/extra.py": "ASKED = ['lab --now']\nTESTS = ['tests/test_lab_too.py']\nOWN = dict()\n",
    "pbt_rl/lab/command.py": "",
    "pbt_rl/page/__init__.py": "",
    "pbt_rl/page/extra.py": "NEEDS: tuple[str, ...] = ('pbt_rl.lab', 'pbt_rl.envs.toys')\n",
    "tests/lab/test_lab.py": "",
    "tests/test_lab_too.py": "",
    "tests/test_core.py": "",
}


@pytest.fixture
def small(tmp_path):
    """A small tree with two extras, of which one needs the other one."""
    for path, text in SMALL.items():
        file = tmp_path / "small" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "small" / "pbt_rl" / "envs").symlink_to("../envs")
    return tmp_path / "small"


def test_extras_are_found_and_removed_with_their_tests_and_what_needs_them(small, tmp_path):
    lab, page = extras(small).values()
    assert lab == Extra(
        "pbt_rl/lab", ("lab --now",), (), ("tests/pbt_rl/lab", "tests/lab", "tests/test_lab_too.py")
    )
    assert page.needs == ("pbt_rl/lab", "envs/toys")
    tree = copy(tmp_path / "tree", small, ALL)
    assert (tree / "pbt_rl" / "envs").is_symlink()
    assert remove(tree, ["pbt_rl/page"]) == {"pbt_rl/page"}
    assert remove(tree, ["pbt_rl/lab"]) == {"pbt_rl/lab"}
    assert [path.name for path in (tree / "tests").rglob("*.py")] == ["test_core.py"]
    again = copy(tmp_path / "again", small)
    assert remove(again, ["pbt_rl/lab"]) == {"pbt_rl/lab", "pbt_rl/page"}
    assert extras(again) == {}


def test_what_is_wrong_with_a_copy_is_said(small, tmp_path, monkeypatch):
    monkeypatch.setattr(deletions, "ANSWER_SECONDS", 2.0)
    tree = copy(tmp_path / "tree", small)
    remove(tree, ["pbt_rl/lab"])
    assert (complaints_of_rooms(tree), unimportable(tree)) == ([], [])
    assert badly_refused(small, tree, "lab --now") == []
    for command, wrong in {
        "other": "exit code 0, not 2",
        "odd": "2 lines, not one",
        "vague": "names nothing of it",
        "slow": "does not end",
    }.items():
        assert wrong in badly_refused(small, tree, command)[0]
    assert "the answer is the same" in badly_refused(tree, tree, "lab --now")[0]
    (tree / "bad").touch()
    (tree / "envs" / "base.py").write_text("import pbt_rl.lab.command\n")
    assert complaints_of_rooms(tree) == ["a complaint"]
    assert [line.partition(":")[0] for line in unimportable(tree)] == ["pbt_rl.envs.base"]
    (tree / "pbt_rl" / "main.py").write_text("raise SystemExit(3)")
    assert "exit code 3" in untrained(tree)[0]
