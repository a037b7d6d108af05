"""Runs that throw rollouts away say so."""

from types import SimpleNamespace

import pytest

from pbt_rl.advice.remarks import Remarks, discard_warning
from pbt_rl.plan import Machine
from pbt_rl.run.recorder import Recorder
from pbt_rl.run.views import discarded_share
from tests.helpers.plans import resolved
from tests.helpers.views import member, view


@pytest.fixture
def run():
    return resolved(
        "gym/CartPole-v1", "--num-policies=1", "--actors=15", "--envs-per-unit=32", machine=Machine(2, 0)
    )


def shown(run, *, discarded, steps=32 * 32 * 300, lag_max=16):
    share = discarded_share(run, discarded, steps)
    return view(member(0), steps=steps, discarded_rollouts=discarded, discarded_share=share, lag_max=lag_max)


def test_the_share_is_of_all_rollouts(run):
    assert discarded_share(run, 0, 0) == 0
    assert discarded_share(run, 135, 306 * 32 * 32) == pytest.approx(135 / 306)


def test_many_discards_are_said_with_the_remedy(run):
    text = discard_warning(run, shown(run, discarded=135))
    assert "45% of all rollouts (135)" in text
    assert "--learner.max-policy-lag 16" in text
    assert "Use --learner.batch 5120, --envs-per-unit 6, --actors 3" in text, "those of the plan"
    planned = resolved("gym/CartPole-v1", machine=Machine(2, 0))
    assert "a larger --learner.batch" in discard_warning(planned, shown(planned, discarded=900))


@pytest.mark.parametrize("changes", [{"discarded": 14}, {"discarded": 40, "steps": 32 * 32 * 99}])
def test_few_discards_or_a_young_run_are_no_warning(run, changes):
    assert discard_warning(run, shown(run, **changes)) is None


def test_the_remedy_is_for_the_cause(run):
    assert "--pbt.period-frames" in discard_warning(run, shown(run, discarded=100, lag_max=5))
    turns = resolved("gym/CartPole-v1", "--num-policies=4", "--slots=2", machine=Machine(2, 0))
    assert "--slot-frames" in discard_warning(turns, shown(turns, discarded=300, lag_max=5))
    search = resolved(
        "gym/CartPole-v1", "--num-policies=4", "--slots=2", "--controller=hyperband", machine=Machine(2, 0)
    )
    text = discard_warning(search, shown(search, discarded=300, lag_max=5))
    assert "--slot-frames" not in text, "a search has no turns"
    assert "--search.phase-frames" in text


def test_it_is_said_once(run):
    said = []
    recorder = Recorder.__new__(Recorder)
    recorder._resolved, recorder._remarks, recorder._evaluation = run, [], None
    recorder._open, recorder._remarks_on = True, [Remarks(run)]
    written = []
    recorder._journal = SimpleNamespace(write=lambda event, _, **content: written.append((event, content)))
    recorder._population = SimpleNamespace(least_frames=0)
    recorder._callbacks = SimpleNamespace(report=lambda view: view)
    recorder._terminal = SimpleNamespace(event=said.append, update=lambda _: None)
    recorder._tensorboard, recorder._sinks = SimpleNamespace(update=lambda _: None), []
    for discarded in (0, 100, 150):
        recorder.show(shown(run, discarded=discarded))
    assert len(said) == 1
    assert recorder._remarks == said
    assert written == [("remark", {"text": said[0]})]
