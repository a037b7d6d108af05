"""Mistyped commands: each gets one line and exit code 2, and leaves no file behind.

mistakes.txt holds typical mistakes with their full error, for people to read: `pytest
tests/cli/test_mistakes.py -m "" --rewrite-golden` rewrites the errors. more_mistakes.txt holds the others:
`COMMAND => WORD | WORD`, the words that the error must contain in this order (option, value, remedy).
"""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from pbt_rl.cli import EXIT_USER_ERROR, main
from pbt_rl.record.run_lock import FolderLock

GOLDEN = Path(__file__).with_name("mistakes.txt")
MORE = Path(__file__).with_name("more_mistakes.txt").read_text(encoding="utf-8").splitlines()

FILES = {
    "runs/torn/config.json": "{",
    "runs/torn/journal.jsonl": "noise\nmore\n",
    "runs/diary/diary.txt": "today",
    "a_file": "",
    "bad.toml": "env = \n",
    "bad.json": "[1]",
    "bad.yaml": "a: [\n",
    "unknown.toml": 'env="toy/identity"\nnum_polices=3\n',
    "evil.yaml": "!!python/object/apply:os.getcwd []",
    "twice.yaml": "env: toy/identity\nseed: 1\nseed: 2\n",
    "type.toml": 'env="toy/identity"\nnum_policies="many"\n',
    "c.ini": "x",
    "nested.json": '{"env": "toy/identity", "pbt": 3}',
    "binary.toml": "\0\0",
    "unknown.csv": "learning_rat\n1e-3\n",
    "text.csv": "learning_rate\nhigh\n1\n1\n1\n",
    "empty.csv": "",
    "range.csv": "learning_rate\n5\n1\n1\n1\n",
    "ragged.csv": "learning_rate,gamma\n1e-3\n1e-3,0.9,3\n",
    "envfile.py": "def nothing():\n    return None\n\ndef needs(x):\n    return None\n\nvalue = 3\n",
    "net.py": "def wrong(a, b, c):\n    return None\n\ndef none(shapes):\n    return None\n",
    "tracker.py": "class T:\n    pass\n",
}
"""Of the folder in which all is typed; `runs/good` is a run besides, `runs/unsaved` one without checkpoints."""
GOOD = (
    "train --env toy/identity --mode serial --name good --num-policies 2 --train-for-frames 300 --actors 1 "
    "--devices cpu --no-figures"
)
TYPED = re.findall(r"^\$ (.*)$", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE)
"""Commands of mistakes.txt. To add one, add its `$` line to the file and rewrite the errors."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(sys, "argv", ["pbt-rl", *shlex.split(GOOD)])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0
    nothing_saved = shutil.ignore_patterns("checkpoints", "journal.jsonl", ".lock")
    shutil.copytree(path / "runs" / "good", path / "runs" / "unsaved", ignore=nothing_saved)
    return path


@pytest.fixture
def typed(folder, monkeypatch, capsys):
    """Type a command in the folder: exit code, output, errors, and what was left."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("pbt_rl.cli.watch.WAIT_SECONDS", 0.0)

    def files():
        found = (p for p in folder.rglob("*") if p.name not in (".lock", "__pycache__"))
        return sorted((p, p.is_file() and p.read_bytes()) for p in found if p.suffix != ".pyc")

    def call(text):
        before = files()
        monkeypatch.setattr(sys, "argv", ["pbt-rl", *shlex.split(text)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err, [one for one in files() if one not in before]

    return call


@pytest.fixture
def refused(typed):
    """Return the error of a command that must fail with one line and leave no file."""

    def call(text):
        code, out, err, left = typed(text)
        assert (code, out, err.count("\n"), left) == (EXIT_USER_ERROR, "", 1, [])
        assert err.startswith("pbt-rl: ")
        return err.removeprefix("pbt-rl: ").rstrip()

    return call


@pytest.fixture(scope="module")
def golden(pytestconfig):
    """Command -> error; with --rewrite-golden, errors that a test adds are written."""
    found = dict(re.findall(r"^\$ (.*)\n  (.*)$", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE))
    yield found
    if pytestconfig.getoption("--rewrite-golden"):
        lines = [f"$ {text}\n  {found.get(text, '')}\n" for text in TYPED]
        GOLDEN.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("text", TYPED)
def test_a_typical_mistake_gets_its_error(refused, text, golden, pytestconfig):
    error = refused(text)
    if pytestconfig.getoption("--rewrite-golden"):
        golden[text] = error
    assert error == golden.get(text), f"if this is meant: pytest {__file__} -m '' --rewrite-golden"


@pytest.mark.long
@pytest.mark.parametrize("line", MORE)
def test_a_mistake_gets_an_error_that_names_it(refused, line):
    text, _, words = line.partition(" => ")
    rest = refused(text)
    for word in words.split(" | "):
        _, found, rest = rest.partition(word)
        assert found, f"{word!r} is not in the rest of the error"


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "named"),
    {
        "train --env toy/identity --out {}": "--out {}",
        "train --env toy/identity --name {}": "--name aaa",
        "train --env toy/identity --resume {}": "--resume {}",
        "train --env toy/identity --init-from {}": "--init-from {}",
        "train --env toy/identity --init-from {}.safetensors": "{}.safetensors",
        "resume {}": "{}/config.json",
        "eval {}": "{}/config.json",
        "report {}": "{}",
        "runs {}": "{}",
    }.items(),
)
def test_a_path_that_no_file_can_have_is_one_clear_error(refused, command, named):
    assert refused(command.format("a" * 300)).startswith(named.format("a" * 300))


@pytest.mark.parametrize("command", ["resume runs/good", "train --config runs/good/config.json --out runs"])
def test_a_run_that_another_process_writes_is_left_alone(typed, folder, command):
    lock = FolderLock(folder / "runs" / "good")
    try:
        code, _, err, left = typed(command)
    finally:
        lock.release()
    assert (code, err.count("\n"), left) == (EXIT_USER_ERROR, 1, [])
    assert "process" in err


def test_a_folder_that_may_not_be_written_is_named(refused):
    # Root may write everywhere else.
    assert refused("train --env toy/identity --out /proc/closed").startswith("--out /proc/closed ")
