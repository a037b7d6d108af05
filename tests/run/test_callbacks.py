"""A user's functions: what they are told, how they end a run, what becomes of their mistakes."""

from __future__ import annotations

import asyncio

import pytest

import pbt_rl
from pbt_rl import ConfigError, RunFailed
from pbt_rl.display.scalars import member_scalars, population_scalars
from pbt_rl.run.callbacks import Callbacks, Stop
from tests.helpers.views import member, view

FEW = {"num_policies": 2, "mode": "serial", "devices": "cpu", "actors": 1, "figures": False}
PBT = {"start_frames": 500, "period_frames": 500, "min_episodes": 1}
RUN = {"env": "toy/identity", "train_for_frames": 4000, "pbt": PBT} | FEW


def seen(members=2):
    return view(*(member(i) for i in range(members)))


def test_a_run_tells_what_happens(tmp_path):
    frames, decided, saved = [], [], []
    result = pbt_rl.train(
        **RUN,
        out=tmp_path,
        on_report=lambda view: frames.append(view.frames),
        on_decision=lambda report, decisions: decided.append((report.frames, len(decisions))),
        on_checkpoint=lambda written: saved.append((written.path, written.frames)),
    )
    rounds = [event for event in result.journal if event["event"] == "round"]
    assert decided == [(r["report"]["frames"], len(r["decisions"])) for r in rounds]
    assert frames[-1] == result.summary["frames"], "the last report is the end"
    assert [path.parent for path, _ in saved] == [result.paths.checkpoints]
    assert saved[0][1] == min(m.frames for m in result.members)
    assert [m.id for m in result.members] == [0, 1]
    assert result.best == result.members[result.summary["best_member"]]
    assert result.ended == "frames"


@pytest.mark.parametrize("name", ["on_report", "on_decision", "on_checkpoint"])
def test_each_may_end_the_run_which_is_saved(tmp_path, name):
    options = RUN | {"train_for_frames": 10**9, "save_every_frames": 1000}
    result = pbt_rl.train(**options, out=tmp_path, **{name: lambda *_: Stop("seen enough")})
    assert result.ended == "seen enough"
    assert pbt_rl.load_policy(result.folder)


@pytest.mark.parametrize(
    ("name", "error"),
    [("on_report", ZeroDivisionError), ("on_decision", SystemExit), ("on_checkpoint", ZeroDivisionError)],
)
def test_an_error_ends_the_run_in_order_and_reaches_the_caller(tmp_path, name, error):
    def wrong(*_):
        raise error("mine")

    options = RUN | {"train_for_frames": 10**9, "save_every_frames": 1000, "name": "x"}
    with pytest.raises(error, match="mine") as caught:
        pbt_rl.train(**options, out=tmp_path, **{name: wrong})
    assert caught.traceback[-1].name == "wrong"
    result = pbt_rl.Result.of(tmp_path / "x")
    assert result.ended == f"{name} raised {error.__name__}"
    if name != "on_report":  # the first report comes before anything is there to be saved
        assert pbt_rl.load_policy(result.folder)


@pytest.mark.parametrize("reason", [None, "", 3])
def test_a_stop_ends_the_run_whatever_its_reason(reason):
    callbacks = Callbacks(on_report=lambda _: Stop(reason))
    callbacks.report(seen())
    assert callbacks.ended == str(reason or "stopped")


def test_a_run_in_another_thread_and_under_an_event_loop(tmp_path):
    found = []

    def train(name):
        found.append(pbt_rl.train(**RUN | {"train_for_frames": 1000}, out=tmp_path, name=name).ended)

    async def main():
        train("loop")
        await asyncio.to_thread(train, "thread")

    asyncio.run(main())
    assert found == ["frames", "frames"]


def test_own_metrics_stand_beside_the_others_until_new_ones_come():
    answers = [{"loss": 1, "each": {1: 2.5}}, None, {"loss": 3}]
    callbacks = Callbacks(on_report=lambda _: answers.pop(0))
    shown = [callbacks.report(seen()) for _ in range(3)]
    assert [v.own["stats/loss"] for v in shown] == [1, 1, 3]
    assert population_scalars(shown[2])["stats/loss"] == 3
    assert [member_scalars(m).get("stats/each") for m in shown[2].members] == [None, 2.5]


def test_a_callback_that_changes_its_view_changes_nothing_else():
    callbacks = Callbacks(on_report=lambda view: view.members[0].values.clear() or view.members.clear())
    assert callbacks.report(seen()) == seen()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (True, "returned True"),
        ({"loss": "high"}, "metric 'loss' is 'high'"),
        ({3: 1.0}, "name 3"),
        ({"loss": {2: 1.0}}, "member 2"),
    ],
)
def test_an_answer_that_means_nothing_is_an_error(answer, message):
    callbacks = Callbacks(on_report=lambda _: answer)
    callbacks.report(seen())
    assert message in str(callbacks.error)
    assert callbacks.ended.startswith("on_report raised ")


def test_the_run_ends_at_an_objective_over_a_full_window(tmp_path):
    options = RUN | {"train_for_frames": 10**9, "stop_at_objective": 1.0}
    options["pbt"] = options["pbt"] | {"objective_episodes": 40}
    result = pbt_rl.train(**options, out=tmp_path)
    assert result.ended == "objective"
    assert result.best.objective >= 1
    assert all(m.episodes >= 40 for m in result.members)


def test_what_is_no_function_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="on_report 3"):
        pbt_rl.train(env="toy/identity", on_report=3)


def test_a_damaged_summary_is_one_clear_error(tmp_path):
    (tmp_path / "summary.json").write_text('{"ended": "fra')
    with pytest.raises(RunFailed, match=r"summary\.json is damaged"):
        pbt_rl.Result.of(tmp_path)
