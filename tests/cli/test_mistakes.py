"""What people mistype, in every command: each gets one clear line and exit code 2, and leaves nothing behind.

How the answers begin stands in mistakes.txt, for people to read: `pytest tests/cli/test_mistakes.py -m long
--rewrite-golden` writes it anew.
"""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from pbt_rl.cli import EXIT_USER_ERROR, main
from pbt_rl.record.claim import FolderLock

pytestmark = pytest.mark.long

GOLDEN = Path(__file__).with_name("mistakes.txt")
LETTERS = 72
"""Of an answer that are kept: what comes later may be a list of what is installed."""

FILES = {
    "runs/torn/config.json": "{",
    "runs/torn/journal.jsonl": "noise\nmore\n",
    "runs/diary/diary.txt": "today",
    "a_file": "",
    "bad.toml": "env = \n",
    "bad.json": "[1]",
    "bad.yaml": "a: [\n",
    "unknown.toml": 'env="toy/identity"\nnum_polices=3\n',
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
MISTAKES = {
    "train --env CartPole": "CartPole",
    "train --env ALE/Pongg-v5": "ALE/Pongg-v5",
    "train --env atari/": "atari/",
    "train --env gym/": "gym/",
    "train --env ''": "--env",
    "train --env /": "/",
    "train --env 'gym/CartPole v1'": "gym/CartPole",
    "train --env toy/identity?length=abc": "toy/identity?length=abc",
    "train --env toy/identity?foo=3": "toy/identity?foo=3",
    "train --env toy/": "toy/",
    "train --env my/file.py:Env": "my/file.py:Env",
    "train --env nomodule:make": "nomodule:make",
    "train --env envfile:nothing": "envfile:nothing",
    "train --env envfile:needs": "envfile:needs",
    "train --env envfile:value": "envfile:value",
    "train --env envfile:nothin": "envfile:nothin",
    "train --env envfile:": "envfile",
    "train --env :make": ":make",
    "train --env a:b:c": "a:b:c",
    "train --env envfile": "envfile",
    "train --env toy/identity --env-option novalue": "--env-option",
    "train --env toy/identity --env-option length=3": "--env-option",
    "train --env gym/CartPole-v1 --env-option foo=1": "gym/CartPole-v1",
    "train --env toy/identity --num-policies 1.5": "--num-policies",
    "train --env toy/identity --num-policies -3": "--num-policies",
    "train --env toy/identity --num-policies 1e30": "--num-policies",
    "train --env toy/identity --num-policies nan": "--num-policies",
    "train --env toy/identity --num-policies ''": "--num-policies",
    "train --env toy/identity --seed -1": "--seed",
    "train --env toy/identity --seed 1e400": "--seed",
    "train --env toy/identity --train-for-frames 0": "--train-for-frames",
    "train --env toy/identity --train-for-frames 1x": "--train-for-frames",
    "train --env toy/identity --train-for-seconds -5": "--train-for-seconds",
    "train --env toy/identity --train-for-seconds inf": "--train-for-seconds",
    "train --env toy/identity --train-for-seconds nan": "--train-for-seconds",
    "train --env toy/identity --actors -1": "--actors",
    "train --env toy/identity --envs-per-unit -1": "--envs-per-unit",
    "train --env toy/identity --learner.batch 0": "--learner.batch",
    "train --env toy/identity --learner.rollout 0": "--learner.rollout",
    "train --env toy/identity --hypers.gamma 2": "--hypers.gamma",
    "train --env toy/identity --hypers.learning-rate -1": "--hypers.learning-rate",
    "train --env toy/identity --hypers.learning-rate nan": "--hypers.learning-rate",
    "train --env toy/identity --devices ''": "--devices",
    "train --env toy/identity --devices gpu": "--devices",
    "train --env toy/identity --devices cpu,,cpu": "--devices",
    "train --env toy/identity --devices 3": "--devices",
    "train --env toy/identity --nodes foo": "--nodes",
    "train --env toy/identity --mode fast": "--mode",
    "train --env toy/identity --algo ppo": "--algo",
    "train --env toy/identity --algo :x": "--algo",
    "train --env toy/identity --controller pbtt": "--controller",
    "train --env toy/identity --controller nowhere:C": "--controller",
    "train --env toy/identity --pbt.exploit trunk": "--pbt.exploit",
    "train --env toy/identity --pbt.explore x": "--pbt.explore",
    "train --env toy/identity --pbt.ready x": "--pbt.ready",
    "train --env toy/identity --pbt.tune nothing": "--pbt.tune",
    "train --env toy/identity --pbt.tune learning_rate=1": "--pbt.tune",
    "train --env toy/identity --pbt.tune learning_rate=5:1": "--pbt.tune",
    "train --env toy/identity --pbt.tune learning_rate=a:b": "--pbt.tune",
    "train --env toy/identity --pbt.tune gamma=0.5:2": "--pbt.tune",
    "train --env toy/identity --pbt.tune =": "--pbt.tune",
    "train --env toy/identity --pbt.prior learning_rate": "--pbt.prior",
    "train --env toy/identity --pbt.prior learning_rat=1:2": "--pbt.prior",
    "train --env toy/identity --pbt.prior learning_rate=1e-5:1e-2:sqrt": "--pbt.prior",
    "train --env toy/identity --pbt.period-frames 0": "--pbt.period-frames",
    "train --env toy/identity --pbt.factors": "--pbt.factors",
    "train --env toy/identity --pbt.factors 0": "--pbt.factors",
    "train --env toy/identity --pbt.exploit-option x=1": "--pbt.exploit-option",
    "train --env toy/identity --pbt.start-values missing.csv": "--pbt.start-values",
    "train --env toy/identity --pbt.start-values unknown.csv": "--pbt.start-values",
    "train --env toy/identity --pbt.start-values text.csv": "--pbt.start-values",
    "train --env toy/identity --pbt.start-values empty.csv": "--pbt.start-values",
    "train --env toy/identity --pbt.start-values range.csv": "--pbt.start-values",
    "train --env toy/identity --pbt.start-values ragged.csv": "--pbt.start-values",
    "train --env toy/identity --pbt.start-values a_file": "--pbt.start-values",
    "train --env toy/identity --pbt.start-values runs": "--pbt.start-values",
    "train --env toy/identity --model.encoder :Net": "--model.encoder",
    "train --env toy/identity --model.encoder net:": "--model.encoder",
    "train --env toy/identity --model.encoder net:wrong": "--model",
    "train --env toy/identity --model.encoder net:none": "--model",
    "train --env toy/identity --model.encoder net:missing": "--model",
    "train --env toy/identity --model.core lsmt": "--model.core",
    "train --env toy/identity --model.core-layers 2": "--model.core-layers",
    "train --env toy/identity --model.hidden 0": "--model.hidden",
    "train --env toy/identity --learner.lr-schedule foo": "--learner.lr-schedule",
    "train --env toy/identity --recipe nope": "--recipe",
    "train --config missing.toml": "--config",
    "train --config bad.toml": "--config",
    "train --config bad.json": "--config",
    "train --config bad.yaml": "--config",
    "train --config unknown.toml": "--config",
    "train --config type.toml": "--config",
    "train --config c.ini": "--config",
    "train --config runs": "--config",
    "train --config nested.json": "--config",
    "train --config binary.toml": "--config",
    "train --config runs/torn/config.json": "--config",
    "train --config": "--config",
    "train --env toy/identity --name 'a b'": "--name",
    "train --env toy/identity --name ''": "--name",
    "train --env toy/identity --name .hidden": "--name",
    "train --env toy/identity --name ü": "--name",
    "train --env toy/identity --name a/b": "--name",
    "train --env toy/identity --out a_file": "--out",
    "train --env toy/identity --out a_file/x": "--out",
    "train --env toy/identity --name diary": "--name",
    "train --env toy/identity --name torn": "runs/torn/config.json",
    "train --env toy/identity --name good --seed 5": "runs/good",
    "train --env toy/identity --init-from nowhere": "--init-from",
    "train --env toy/identity --init-from runs/good@5": "runs/good/checkpoints",
    "train --env toy/identity --init-from runs/good:9": "member",
    "train --env toy/identity --init-from runs/good:x": "--init-from",
    "train --env toy/identity --init-from runs/unsaved": "runs/unsaved",
    "train --env toy/identity --init-from no.safetensors": "no.safetensors",
    "train --env toy/identity --init-from runs/good --init-from runs/good": "--init-from",
    "train --env toy/identity --init-parts foo": "--init-parts",
    "train --env toy/identity --init-from a_file": "--init-from",
    "train --env toy/identity --track tensorboard": "--track",
    "train --env toy/identity --track csv --track csv": "--track",
    "train --env toy/identity --track tracker:": "--track",
    "train --env toy/identity --track nowhere:T": "--track",
    "train --env toy/identity --track tracker:T": "--track",
    "train --env toy/identity --save-every-frames -1": "--save-every-frames",
    "train --env toy/identity --keep-checkpoints 0": "--keep-checkpoints",
    "train --env toy/identity --slots -1": "--slots",
    "train --env toy/identity --slot-frames 0": "--slot-frames",
    "train --env toy/identity --final-episodes -1": "--final-episodes",
    "train --env toy/identity --evaluate-every-frames -1": "--evaluate-every-frames",
    "train --env toy/identity --evaluate-every-frames often": "--evaluate-every-frames",
    "train --env toy/identity --evaluate-video": "--evaluate-video",
    "train --env toy/identity --evaluate-every 5": "--evaluate-every",
    "train --env toy/identity --evaluate-every-frames 5 --evaluate-video": "--evaluate-video",
    "train --env toy/identity --controller schedule": "--schedule.run",
    "train --env toy/identity --controller schedule --schedule.run nowhere": "--schedule.run",
    "train --env toy/identity --controller hyperband --search.eta 1": "--search.eta",
    "train --env toy/identity --show --format xml": "--format",
    "train --env toy/identity --resume maybe": "--resume",
    "train --env toy/identity --figures perhaps": "--figures",
    "train --env toy/identity toy/memory": "toy/memory",
    "train --env toy/identity extra": "extra",
    "train --env toy/identity --": "--",
    "train --env": "--env",
    "train --env toy/identity --matchup.objective elo": "--matchup.objective",
    "eval": "RUN",
    "eval nowhere": "nowhere",
    "eval a_file": "a_file",
    "eval runs/good --member 9": "member",
    "eval runs/good --member x": "--member",
    "eval runs/good --member -1": "--member",
    "eval runs/good --at 5": "runs/good/checkpoints",
    "eval runs/good --at x": "--at",
    "eval runs/good --episodes 0": "--episodes",
    "eval runs/good --episodes x": "--episodes",
    "eval runs/good --seed -1": "--seed",
    "eval runs/good --video f.avi": "--video",
    "eval runs/good --video nodir/f.mp4": "--video",
    "eval runs/good --against nowhere": "--against",
    "eval runs/good --against random": "--against",
    "eval runs/good --against random --video f.gif": "--video",
    "eval runs/torn": "runs/torn/config.json",
    "eval runs/unsaved": "runs/unsaved",
    "eval runs/diary": "runs/diary",
    "eval runs/good extra": "extra",
    "eval runs/good --epsiodes 3": "--epsiodes",
    "report": "RUNS",
    "report nowhere": "nowhere",
    "report a_file": "a_file",
    "report runs/torn": "runs/torn",
    "report runs/unsaved": "runs/unsaved",
    "report runs/good --out a_file": "--out",
    "report runs/good nowhere": "nowhere",
    "report runs/good --ouy x": "--ouy",
    "watch": "RUN",
    "watch nowhere": "nowhere",
    "watch runs/torn": "runs/torn/journal.jsonl",
    "watch runs/good --port 99999": "--port",
    "watch runs/good --port -1": "--port",
    "watch runs/good --port abc": "--port",
    "export": "RUN",
    "export nowhere": "nowhere",
    "export runs/good --format pt": "--format",
    "export runs/good --episodes -1": "--episodes",
    "export runs/good --out a_file": "a_file",
    "export runs/unsaved": "runs/unsaved",
    "runs a_file": "a_file",
    "runs a b": "b",
    "train --resume runs/good": "--resume",
    "sweep --env toy/identity": "--name",
    "sweep --name s": "--env",
    "sweep --name s --env toy/identity --seeds a": "--seeds",
    "sweep --name s --env toy/identity --seeds 5-1": "--seeds",
    "sweep --name s --env toy/identity --grid x": "--grid",
    "sweep --name s --env toy/identity --grid nope=1,2": "--nope",
    "sweep --name s --env toy/identity --jobs 0": "--jobs",
    "sweep --name 'a b' --env toy/identity": "--name",
    "audit": "RUN",
    "audit nowhere": "nowhere",
    "audit runs/torn": "runs/torn",
    "audit runs/unsaved": "runs/unsaved",
    "resume nowhere": "nowhere",
    "resume": "RUN",
    "resume runs/good --num-policies 12": "--num-policies",
    "eval goood": "runs/good?",
    "report runs/goo": "runs/good?",
    "train --env toy/identity --algo sac": "tune.run",
    "train --env toy/identity --controller pb2": "--pbt.explore pb2",
    "train --env toy/identity --pbt.exploit truncaton": "truncation?",
    "train --env toy/identity --mode min": "more is better",
    "train --env toy/identity --metric loss": "more is better",
    "train --env toy/identity --seeds 1 2": "pbt-rl sweep",
    "train --env toy/identity --pbt.tune lr=1e-5:1e-2": "learning_rate?",
    "train --env toy/identity --pbt.tune learning_rate 1e-5 1e-2": "NAME=LOW:HIGH",
    "resume runs/torn": "runs/torn/config.json",
    "resume runs/good --seed 3": "--seed",
    "resume runs/good --env toy/memory": "--env",
    "resume --seed 3": "--seed",
    "resume runs/good --train-for-framse 5": "--train-for-framse",
    "envs foo": "foo",
    "envs check": "ENV",
    "envs check nowhere:x": "nowhere:x",
    "envs check toy/identity --steps 0": "--steps",
    "envs check envfile:nothing": "envfile:nothing",
    "dmlab-cache --jobs -1": "--jobs",
    "dmlab-cache --levels": "--levels",
}
"""What is typed -> what the answer must name: the option, or the thing that is wrong."""


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
        found = (
            p for p in folder.rglob("*") if p.name not in (".lock", "__pycache__") and p.suffix != ".pyc"
        )
        return sorted((p, p.is_file() and p.read_bytes()) for p in found)

    def call(text):
        before = files()
        monkeypatch.setattr(sys, "argv", ["pbt-rl", *shlex.split(text)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err, [one for one in files() if one not in before]

    return call


@pytest.fixture(scope="module")
def golden(pytestconfig):
    """What was typed -> how the answer began; answers that a test adds are written if that is asked for."""
    found = dict(re.findall(r"^\$ (.*)\n  (.*)$", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE))
    yield found
    if pytestconfig.getoption("--rewrite-golden"):
        lines = [f"$ {text}\n  {found[text]}\n" for text in MISTAKES if text in found]
        GOLDEN.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_gets_one_clear_line_and_leaves_nothing(typed, text, golden, pytestconfig):
    code, out, err, left = typed(text)
    assert (code, out, err.count("\n"), left) == (EXIT_USER_ERROR, "", 1, [])
    assert err.startswith("pbt-rl: ")
    assert MISTAKES[text] in err
    answer = err.removeprefix("pbt-rl: ")[:LETTERS].rstrip()
    if pytestconfig.getoption("--rewrite-golden"):
        golden[text] = answer
    assert answer == golden.get(text), f"if this is meant: pytest {__file__} -m long --rewrite-golden"


@pytest.mark.parametrize(
    ("command", "said"),
    {
        "train --env toy/identity --out {}": "--out {} cannot be written: File name too long",
        "train --env toy/identity --name {}": "--name " + "a" * 100,
        "train --env toy/identity --resume {}": "--resume {} cannot be used",
        "train --env toy/identity --init-from {}": "--init-from {} cannot be used: write a member of a run",
        "train --env toy/identity --init-from {}.safetensors": "{}.safetensors is not a file: give a",
        "resume {}": "{}/config.json cannot be read: File name too long",
        "eval {}": "{}/config.json cannot be read: File name too long",
        "report {}": "{} cannot be read: File name too long",
        "runs {}": "{} cannot be listed: File name too long",
    }.items(),
)
def test_a_path_that_no_file_can_have_is_one_clear_error(typed, command, said):
    code, out, err, left = typed(command.format("a" * 300))
    assert (code, out, err.count("\n"), left) == (EXIT_USER_ERROR, "", 1, [])
    assert err.startswith(f"pbt-rl: {said.format('a' * 300)}")


@pytest.mark.parametrize("command", ["resume runs/good", "train --config runs/good/config.json --out runs"])
def test_a_run_that_another_process_writes_is_left_alone(typed, folder, command):
    lock = FolderLock(folder / "runs" / "good")
    try:
        code, _, err, left = typed(command)
    finally:
        lock.release()
    assert (code, err.count("\n"), left) == (EXIT_USER_ERROR, 1, [])
    assert "process" in err


def test_a_folder_that_may_not_be_written_is_named(typed):
    code, out, err, left = typed(
        "train --env toy/identity --out /proc/closed"
    )  # root may write everywhere else
    assert (code, out, err.count("\n"), left) == (EXIT_USER_ERROR, "", 1, [])
    assert "--out /proc/closed cannot be written: " in err
