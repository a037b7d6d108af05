"""`--shaping.NAME VALUE` when a run is resumed: every member has it from there on, and the audit agrees."""

import json

import pytest

from pbt_rl.cli.resume import parse_resume
from pbt_rl.cli.resume import run as resume
from pbt_rl.config.command import parse_train
from pbt_rl.errors import ConfigError
from pbt_rl.record.folder import RunFolder
from pbt_rl.record.journal import read_journal
from pbt_rl.report.audit import audit
from pbt_rl.report.what_if import what_if
from pbt_rl.run.train import train

TYPED = (
    "--env toy/shaped --mode serial --num-policies 5 --name run --no-figures --actors 1 --final-episodes 0 "
    "--train-for-frames 5k --pbt.period-frames 2k --pbt.start-frames 2k --pbt.min-episodes 1 --pbt.mutation-rate 1"
)
RULES = {
    "plain": "",
    "remembering": "--pbt.exploit backtrack --pbt.exploit-option rules.1.min_population=2",
    "turns and controls": "--slots 2 --slot-frames 1k --control 2",
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_members_have_it_from_there_on_and_the_audit_agrees(rules, tmp_path, capsys):
    tune = ["--pbt.tune", "learning_rate"]
    train(parse_train([*TYPED.split(), "--out", str(tmp_path), *rules.split(), *tune]))
    folder = RunFolder(tmp_path / "run")
    for value, frames in ((3, "9k"), (0.5, "11k")):
        train(parse_resume(folder.path, [f"--shaping.bait={value}", "--train-for-frames", frames]))
        events = read_journal(folder.journal)
        resumed = max(i for i, event in enumerate(events) if event["event"] == "resume")
        assert events[resumed]["values"] == {"shaping.bait": value}
        decisions = [d for e in events[resumed:] for d in e.get("decisions", ()) if d.get("values")]
        assert {d["values"]["shaping.bait"] for d in decisions} <= {value}
        assert all(json.loads(folder.values(m).read_text())["shaping"]["bait"] == value for m in range(5))
        assert audit(folder.path) == 0


def test_a_weight_that_pbt_has_changed_is_set_again_if_it_is_given_again(tmp_path, capsys):
    words = ["--out", str(tmp_path), "--pbt.tune", "shaping.bait", "--shaping.bait", "0.9"]
    train(parse_train([*TYPED.split(), *words]))
    folder = RunFolder(tmp_path / "run")

    def weights():
        return {json.loads(folder.values(m).read_text())["shaping"]["bait"] for m in range(5)}

    assert weights() != {0.9}
    words = [str(folder.path), "--shaping.bait=0.9", "--train-for-frames=6k", "--pbt.period-frames=5k"]
    assert resume(words) == 0
    assert weights() == {0.9}
    assert "shaping.bait is now 0.9 for each member" in capsys.readouterr().out
    assert audit(folder.path) == 0


def test_other_rules_are_asked_of_such_a_run_and_a_wrong_name_is_refused(tmp_path, capsys):
    train(parse_train([*TYPED.split(), "--out", str(tmp_path)]))
    with pytest.raises(ConfigError, match=r"--shaping.bat .*bait"):
        train(parse_resume(tmp_path / "run", ["--shaping.bat", "3"]))
    train(parse_resume(tmp_path / "run", ["--shaping.bait", "3", "--train-for-frames", "9k"]))
    assert "shaping.bait is now 3 " in capsys.readouterr().out
    assert what_if(tmp_path / "run", ["pbt.exploit=truncation"]) == 0
