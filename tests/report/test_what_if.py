"""`pbt-rl audit RUN --what-if`: the recorded scores, decided under other rules."""

import dataclasses

import pytest
from msgspec.structs import replace

from pbt_rl.config import Config
from pbt_rl.config.command import parse_train
from pbt_rl.controllers.events import Comparison
from pbt_rl.envs.lookup import probe
from pbt_rl.errors import ConfigError
from pbt_rl.plan import Machine
from pbt_rl.record.journal import journal_events
from pbt_rl.report.audit import Recorded
from pbt_rl.report.what_if import decide_again, described, what_if
from pbt_rl.run import resolved
from pbt_rl.run.resolved import ResolvedRun
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
    }
    for name, more in others.items():
        assert train(parse_train(f"{TRAIN} --out {folder} --name {name} {more}".split())) == 0
    return folder


def found(run, words):
    return decide_again(Recorded.open(run), words)


def rounds(run):
    return [e for e in journal_events(run) if isinstance(e, Comparison)]


def test_under_its_own_rule_a_run_comes_out_bit_for_bit(runs, capsys):
    assert what_if(runs / "own", ["pbt.exploit=truncation"]) == 0
    same = found(runs / "own", ["pbt.exploit=truncation"])
    assert same.exact_comparisons == len(same.counter.frames) == len(rounds(runs / "own")) > 5
    assert same.replacements == same.counter.replacements > 0


OTHERS = {
    "gap": ["pbt.replace-gap=0.25"],
    "t-test": ["pbt.exploit=t-test"],
    "share": ["pbt.replace-fraction=0.1"],
}


@pytest.mark.parametrize("name", OTHERS)
def test_under_another_it_equals_a_fresh_run_up_to_the_first_difference(runs, name):
    told = found(runs / "own", OTHERS[name])
    own, fresh = rounds(runs / "own"), rounds(runs / name)
    bare = [[[replace(d, reason="") for d in r.decisions] for r in made] for made in (own, fresh)]
    equal = next(i for i, (a, b) in enumerate(zip(*bare, strict=False)) if a != b)
    assert told.exact_comparisons == equal
    first = told.differing[0]
    assert told.counter.frames[first.index] == own[equal].frames
    assert own[equal].report == fresh[equal].report, "the same scores"
    assert first.decided == bare[1][equal], "decided as by a fresh run"
    assert described(first)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("hypers.gamma=0.9", "pbt.exploit=t-test"),
        ("pbt.Objective-Episodes=3", "--pbt.objective-episodes"),
        ("pbt.exploit", "NAME=VALUE"),
        ("pbt.exploit=tea", "top-middle-bottom"),
        ("controller=asha", "asha"),
        ("pbt.frequencies=1,2", "--controller mf-pbt"),
        ("pbt.ready=timed", "--pbt.ready timed"),
        ("pbt.period-frames=200", "--pbt.period-frames 200"),
    ],
)
def test_what_cannot_be_asked_is_refused(runs, words, remedy):
    with pytest.raises(ConfigError, match=remedy):
        what_if(runs / "own", [words])


def test_controls_are_refused_where_members_play_each_other(monkeypatch):
    config = Config(env="toy/identity", control=1)
    spec = dataclasses.replace(probe(config.env, config.env_options), agents=2)
    monkeypatch.setattr(resolved, "probe", lambda *_: spec)
    with pytest.raises(ConfigError, match="--control 1"):
        ResolvedRun.resolve(config, Machine.here())
