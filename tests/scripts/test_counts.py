"""`scripts/lab/counts.py`: each rule on a small tree, the walks on made-up traces, the table beside another one."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "scripts" / "lab"))

import counts
import counts_walks
from counts_tracer import Tracer
from counts_walks import Trace

MESSAGES = """
class Load: ...
class Saved: ...
ToLearner = (
    Load
    | Stop
)
FromLearner = Saved
"""
TREE = {
    "algos/pack.py": "def copy_member(source, target): ...\n",
    "envs/base.py": "",
    "envs/lab/extra.py": "",
    "envs/lab/row.py": "PR_SET_PDEATHSIG = 1\n",
    "pbt_rl/wire/messages.py": MESSAGES,
    "pbt_rl/record/checkpoints.py": "import json\ndef read():\n    return json.loads('')\n",
    "pbt_rl/record/events.py": "def event_from_dict(record): ...\n",
    "pbt_rl/record/typed.py": "def read(msgspec, data):\n    return msgspec.json.decode(data)\n",
    "pbt_rl/options.py": "def walk(options):\n    return fields(options)\n",
    "pbt_rl/pbt/state.py": "def names(kind):\n    return fields(kind)\n",
    "pbt_rl/wire/keeper.py": "def end(p):\n    for c in p.children():\n        c.kill()\n",
    "tests/test_x.py": "def test(monkeypatch, a):\n    monkeypatch.setattr(a, 'b', a._c)\n    a.__dict__\n",
    "README.md": "x" * 2500,
    "docs/lab/more.md": "x" * 1000,
}


@pytest.fixture
def found(tmp_path):
    for path, text in TREE.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "pbt_rl" / "envs").symlink_to("../envs")
    return counts.count(tmp_path, walks=False)


def test_what_is_counted(found):
    def names(name):
        assert found[name].number == len(found[name].names)
        return found[name].names

    assert names("messages to a learner") == ["Load", "Stop"]
    assert names("messages from a learner") == ["Saved"]
    assert names("ways to move a state") == ["from slot to slot on a device", "under a key in the store"]
    assert names("files that read JSON by hand") == [
        "pbt_rl/record/checkpoints.py",
        "pbt_rl/record/events.py",
    ]
    assert names("files that read JSON by a schema") == ["pbt_rl/record/typed.py"]
    assert names("functions that reflect over a dataclass") == [
        "pbt_rl/options.py:walk",
        "pbt_rl/pbt/state.py:names",
    ]
    assert names("of them over options") == ["pbt_rl/options.py:walk"]
    assert names("files with process guards") == ["envs/lab/row.py", "pbt_rl/wire/keeper.py"]


def test_sizes_of_core_extras_pages_and_tests(found):
    numbers = {name: count.number for name, count in found.items()}
    assert numbers["files of the product"] == 11, "links are not followed"
    assert (numbers["files of lab"], numbers["lines of lab"], numbers["files of core"]) == (2, 1, 9)
    assert numbers["lines of core"] + numbers["lines of lab"] == numbers["lines of the product"]
    assert (numbers["KB README.md"], numbers["KB docs/lab/more.md"], numbers["KB of all pages"]) == (
        2.5,
        1,
        3.5,
    )
    assert (numbers["monkeypatches in tests"], numbers["private attributes in tests"]) == (1, 1)


def test_a_checkout_without_extras_must_have_the_former_files(tmp_path):
    (tmp_path / "envs").mkdir()
    with pytest.raises(ValueError, match=r"no extra\.py, and no"):
        counts.count(tmp_path, walks=False)


def test_the_table_shows_both(found):
    other = {"files of core": {"number": 12}, "files of gone": {"number": 3}}
    lines = [line.split() for line in counts.table(found, json.loads(json.dumps(other)))]
    assert ["files", "of", "core", "12", "9"] in lines
    assert ["files", "of", "gone", "3", "-"] in lines
    assert ["messages", "to", "a", "learner", "-", "2"] in lines


STEP, OPTIM = "envs/gym.py:GymUnit.step", "algos/optim.py:adam"


def traced(*calls, value=(), holder=()):
    return Trace(list(calls), list(value), list(holder))


def test_what_is_called_for_each_event_and_never_otherwise():
    loop = ("pbt_rl/a.py:poll", STEP)
    event = ("pbt_rl/a.py:poll", "pbt_rl/b.py:decide", "pbt_rl/c.py:write")
    compared = traced(
        STEP, *loop, *event, *event, "pbt_rl/d.py:by_the_clock", *event, *loop, "pbt_rl/e.py:end"
    )
    plain = traced(STEP, *loop, *loop)
    assert counts_walks.only_in([compared], [plain]) == ["pbt_rl/b.py", "pbt_rl/c.py"]
    once = traced(STEP, *event[:2] * 3, *event, "pbt_rl/display/terminal.py:show", *loop)
    assert counts_walks.only_in([compared, once], [plain]) == ["pbt_rl/b.py"]
    assert counts_walks.only_in([compared], [plain, once]) == []
    with pytest.raises(ValueError, match="no step"):
        traced("pbt_rl/a.py:poll").training()


def test_an_option_ends_at_its_rule():
    calls = (
        "pbt_rl/cli.py:parse",
        "pbt_rl/run.py:train",
        "pbt_rl/pbt/rules.py:make",
        "pbt_rl/j.py:write",
    )
    trace = traced(*calls, value=[calls[0], calls[3]], holder=[calls[1]])
    assert counts_walks.option(trace) == (["pbt_rl/cli.py", "pbt_rl/run.py"], ["pbt_rl/cli.py"])
    with pytest.raises(ValueError, match="reached no rule"):
        counts_walks.option(traced(*calls[:2], value=calls[:1]))


def test_a_transition_crosses_what_every_batch_does():
    batch = (STEP, "pbt_rl/wire/mailbox.py:publish", "pbt_rl/run/loop.py:turn", OPTIM)
    trace = traced(*batch, STEP, "algos/once.py:compile", *batch[1:])
    assert counts_walks.transition(trace) == ["algos/optim.py", "envs/gym.py", "pbt_rl/wire/mailbox.py"]


def test_the_tracer_follows_a_value_into_lists_and_holders(tmp_path):
    (tmp_path / "pbt_rl").mkdir()
    module = tmp_path / "pbt_rl" / "sample.py"
    module.write_text(
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Options:\n    share: float\n"
        "def words(given): return len(given)\n"
        "def number(word): return float(word[7:])\n"
        "def plan(options): return 1\n"
        "def other(x): return x\n"
    )
    names = {}
    exec(compile(module.read_text(), module, "exec"), names)
    tracer = Tracer(tmp_path, "0.375")
    sys.setprofile(tracer)
    names["words"](["--share=0.375"])
    names["number"]("share: 0.375")
    names["plan"](names["Options"](0.375))
    names["other"](0.5)
    sys.setprofile(None)

    def told(numbers):
        return [tracer.functions[i].removeprefix("pbt_rl/sample.py:") for i in numbers]

    assert told(tracer.calls) == ["words", "number", "plan", "other"]
    assert told(tracer.value) == ["words", "number", "number"]
    assert told(tracer.holder) == ["plan"]
