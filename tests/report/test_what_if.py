"""`pbt-rl audit RUN --what-if`: the recorded scores, decided under other rules."""

from dataclasses import replace

import pytest

from pbt_rl.config import Config
from pbt_rl.config.command import parse_train
from pbt_rl.controllers.events import Round
from pbt_rl.envs.lookup import probe
from pbt_rl.errors import ConfigError
from pbt_rl.plan import Machine
from pbt_rl.record.journal import journal_events
from pbt_rl.report.audit import Recorded
from pbt_rl.report.what_if import _without_reason, decide_again, what_if, with_rules
from pbt_rl.run import resolved
from pbt_rl.run.resolved import ResolvedRun, build_controller, value_table
from pbt_rl.run.train import train

TRAIN = (
    "--env toy/identity --mode serial --num-policies 6 --train-for-frames 6000 --pbt.start-frames 500 "
    "--pbt.period-frames 500 --pbt.min-episodes 1 --pbt.exploit truncation --pbt.replace-errors 0 --final-episodes 0 "
    "--control 2 --figures no --save-every-seconds 0"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of real serial runs with two controls: `own`, and shorter ones under other rules."""
    folder = tmp_path_factory.mktemp("runs")
    others = {
        "own": "",
        "gap": "--pbt.replace-gap 0.25 --train-for-frames 2500",
        "t-test": "--pbt.exploit t-test --train-for-frames 2500",
        "share": "--pbt.replace-fraction 0.1 --train-for-frames 2500",
        "period": "--pbt.period-frames 1000 --pbt.start-frames 500 --train-for-frames 2500",
    }
    for name, more in others.items():
        assert train(parse_train(f"{TRAIN} --out {folder} --name {name} {more}".split())) == 0
    return folder


def found(run, words):
    recorded = Recorded.open(run)
    configs = (recorded.config, with_rules(recorded.config, words, run))
    controllers = (build_controller(c, value_table(c, recorded.start.shaping), c.seed) for c in configs)
    return decide_again(recorded.events, *controllers, (recorded.resumed, recorded.resumed))


def rounds(run):
    return [e for e in journal_events(run) if isinstance(e, Round)]


def test_under_its_own_rule_a_run_comes_out_bit_for_bit(runs, capsys):
    assert what_if(runs / "own", ["pbt.exploit=truncation"]) == 0
    assert "all agree bit for bit" in capsys.readouterr().out
    same = found(runs / "own", ["pbt.exploit=truncation"])
    recorded = rounds(runs / "own")
    assert same.exact_rounds == same.rounds == len(recorded) > 5
    assert same.replacements == same.noise.replacements > 0


OTHERS = {
    "gap": ["pbt.replace-gap=0.25"],
    "t-test": ["pbt.exploit=t-test"],
    "share": ["pbt.replace-fraction=0.1"],
    "period": ["pbt.period-frames=1000", "pbt.start-frames=500"],
}


@pytest.mark.parametrize("name", OTHERS)
def test_under_another_it_equals_a_fresh_run_up_to_the_first_difference(runs, name):
    told = found(runs / "own", OTHERS[name])
    own, fresh = rounds(runs / "own"), rounds(runs / name)
    at = {r.frames: r for r in fresh}
    done = {frames: [*map(_without_reason, r.decisions)] for frames, r in at.items()}
    equal = next(i for i, r in enumerate(own) if done.get(r.frames) != [*map(_without_reason, r.decisions)])
    assert told.exact_rounds == equal
    assert told.first == f"at {own[equal].frames:,} frames"
    exact = [o for o in told.others if o.exact]
    assert exact
    assert {o.frames for o in exact} == {own[equal].frames}
    theirs = at.get(own[equal].frames)
    if theirs is None:  # it goes on, and is compared later
        assert {o.decided for o in exact} == {"not compared"}
    else:  # the same scores, of which it decides there as the fresh run does
        assert own[equal].report == theirs.report
        kinds = {d.member: type(d).__name__ for d in theirs.decisions}
        words_of = {"Continue": "continues", "Mutate": "mutates"}
        assert all(o.decided.startswith(words_of.get(kinds[o.member], "copies member")) for o in exact)
    assert all(not o.exact for o in told.others if o.frames > own[equal].frames)


def test_a_rule_that_compares_earlier_is_exact_only_until_then(runs, capsys):
    what_if(runs / "own", ["pbt.start-frames=200", "pbt.period-frames=200"])
    text = capsys.readouterr().out
    assert "exact for the first 0 rounds" in text
    assert "at 200 frames" in text
    assert "exact, at" not in text


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("hypers.gamma=0.9", "options of decisions"),
        ("pbt.Objective-Episodes=3", "train again with --pbt.objective-episodes"),
        ("pbt.exploit", "NAME=VALUE"),
        ("pbt.exploit=tea", "top-middle-bottom"),
        ("controller=asha", "controller asha"),
        ("pbt.frequencies=1,2", "--controller mf-pbt"),
        ("pbt.ready=timed", "--pbt.ready synchronous"),
    ],
)
def test_what_cannot_be_asked_is_refused(runs, words, remedy):
    with pytest.raises(ConfigError, match=remedy):
        what_if(runs / "own", [words])


def test_controls_are_refused_where_members_play_each_other(monkeypatch):
    config = Config(env="toy/identity", control=1)
    spec = replace(probe(config.env, config.env_options), agents=2)
    monkeypatch.setattr(resolved, "probe", lambda *_: spec)
    with pytest.raises(ConfigError, match="play each other"):
        ResolvedRun.resolve(config, Machine.here())
