"""`pbt-rl set`: a run that trains takes options and values over, its record says so, and it goes on from there."""

import itertools
import json
import time

import pytest
from gymnasium.spaces import Discrete

from pbt_rl.cli.set import _parted, _typed
from pbt_rl.config import Config
from pbt_rl.errors import ConfigError
from pbt_rl.pbt.decisions import Continue, Evaluate, Mutate
from pbt_rl.plan import Machine
from pbt_rl.population.stopping import Stop
from pbt_rl.record import requests
from pbt_rl.record.journal import read_journal
from pbt_rl.report.read import read_run
from pbt_rl.run.audit import audit
from pbt_rl.run.callbacks import Callbacks
from pbt_rl.run.live import LiveChanges
from pbt_rl.run.resolved import ResolvedRun
from pbt_rl.run.train import train
from pbt_rl.wire.messages import Episode, LearnerReport
from tests.helpers import runs as helper
from tests.helpers.resumable import Run
from tests.run.test_curriculum import Growing
from tests.run.test_resume import configured, run
from tests.run.test_state import config as simulated


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(requests, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr("pbt_rl.run.supervisor.VIEW_SECONDS", 0.0)


def asking(out, *asked, name="x", gap_frames=0, **more):
    """Train serially until every request is answered, each asked so many frames after the answer before it.

    Nothing depends on the speed of the machine. Returns folder and answers.
    """
    folder, left, answers = out / name, list(asked), []
    ready_frames = 1

    def on_report(view):
        nonlocal ready_frames
        inbox = folder / requests.FOLDER
        inbox.mkdir(exist_ok=True)
        for path in inbox.glob("*.answer"):
            answers.append(json.loads(path.read_text()))
            path.unlink()
            ready_frames = view.frames + gap_frames
        if len(answers) + len(left) < len(asked) or view.frames < ready_frames:
            return None
        if not left:
            return Stop("all is answered")
        (inbox / f"{time.time_ns()}-1.json").write_text(json.dumps(left.pop(0)))
        return None

    config = configured(out, name, **{"train-for-frames": 10**6} | more)
    assert train(config, Callbacks(on_report=on_report)) == 0
    return folder, answers


def request(values=None, members=None, **options):
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    return {"options": named, "values": values or {}, "members": members}


def events(folder, kind):
    return [e for e in read_journal(folder / "journal.jsonl") if e["event"] == kind]


OPTIONS = request(pbt__mutation_rate=0.9, pbt__period_frames=200, train_for_frames=90000, keep_checkpoints=1)
VALUES = request({"learning_rate": 1e-4, "gamma": 0.9}, [2])


class Duel:
    """Two agents, of which each has a number and a choice."""

    possible_agents = ("left", "right")

    def observation_space(self, _agent):
        return Discrete(2)

    def action_space(self, _agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = [*self.possible_agents]
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions):
        ends = dict.fromkeys(actions, True)
        self.agents = []
        return (
            dict.fromkeys(actions, 0),
            dict.fromkeys(actions, 0.0),
            ends,
            ends,
            {agent: {} for agent in actions},
        )

    def close(self):
        pass


ENOUGH = request(train_for_frames=1)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "LOOK_SECONDS", 0.0)
        patch.setattr("pbt_rl.run.supervisor.VIEW_SECONDS", 0.0)
        folder = tmp_path_factory.mktemp("live")
        return asking(folder, OPTIONS, VALUES, ENOUGH, gap_frames=3200)


def test_the_command_is_answered(changed):
    options, values, *_ = changed[1]
    assert "--pbt.mutation-rate is 0.9 from now on (it was 0.15)" in options["changed"]
    assert len(options["changed"]) == 4
    assert [line.startswith("member 2: set by the user: ") for line in values["changed"]] == [True]


def test_options_hold_from_then_on(changed):
    folder, _ = changed
    first, *_ = events(folder, "set")
    rounds = [e["frames"] for e in events(folder, "round") if e["frames"] > first["frames"]]
    assert min(later - before for before, later in itertools.pairwise(rounds)) < 300, "it was 300"
    assert len(list((folder / "checkpoints").glob("at_*"))) == 1


def test_a_budget_that_is_spent_by_now_ends_the_run(changed):
    assert events(changed[0], "end")[0]["ended"] == "frames"


def test_environments_that_ask_are_told_of_a_budget_that_was_set(tmp_path):
    Growing.told.clear()
    growing = {"env": f"{Growing.__module__}:Growing", "learner.lr-schedule": "constant", "num-policies": 2}
    asked = request(train_for_frames=30_000)
    asking(tmp_path, asked, gap_frames=100, **growing, **{"train-for-frames": 20_000})
    told = [[info["budget_frames"] for info in heard] for heard in Growing.told if heard]
    assert len(told) > 1
    assert all(budgets == sorted(budgets) for budgets in told), "once it was set, it holds"
    assert {frozenset(budgets) for budgets in told} == {frozenset({20_000, 30_000})}


def test_a_members_values_are_those_that_were_set_and_proved(changed):
    folder, _ = changed
    asked = events(folder, "set")[1]
    (decision,) = asked["decisions"]
    proof = next(e for e in events(folder, "applied") if e["time"] >= asked["time"])
    assert proof["member"] == decision["member"] == 2
    assert proof["in_optimizer"]["learning_rate"] == pytest.approx(1e-4)


def test_the_run_can_be_decided_again_bit_for_bit(changed):
    assert audit(changed[0]) == 0


def test_the_report_knows_what_the_user_did(changed):
    history = read_run(changed[0])
    assert [
        t.decision.member for t in history.decisions if t.decision.reason.startswith("set by the user")
    ] == [2]
    assert history.options.train_for_frames == 1


def test_a_resumed_run_keeps_it(changed):
    folder, _ = changed
    config = json.loads((folder / "config.json").read_text())
    assert (config["pbt"]["mutation_rate"], config["train_for_frames"]) == (0.9, 1)


@pytest.mark.long
def test_an_option_that_was_set_after_the_last_checkpoint_is_in_the_audit(tmp_path):
    folder = run(tmp_path, "cut", 900)
    config = json.loads((folder / "config.json").read_text())
    config["pbt"]["mutation_rate"] = 0.9  # as if the run was killed before it was saved again
    (folder / "config.json").write_text(json.dumps(config))
    run(tmp_path, "cut", None, **{"pbt.mutation-rate": 0.9})
    (resume,) = events(folder, "resume")
    assert resume["changed"] == {"pbt.mutation-rate": [0.15, 0.9]}
    assert audit(folder) == 0


REFUSED = {
    "devices": (request(devices="cpu,cpu"), "--devices cannot change while a run trains"),
    "env": (request(env="toy/memory"), "--env cannot change"),
    "unknown": (request(nonsense=3), "--nonsense cannot change"),
    "range": (request(pbt__mutation_rate=3), "--pbt.mutation-rate 3.0 cannot be used: give 0 to 1"),
    "type": (request(pbt__mutation_rate="much"), "pbt.mutation_rate in config.json cannot be used"),
    "module": (request(pbt__exploit="os:system"), "cannot be loaded into a run that trains"),
    "rule": (request(pbt__ready="asynchronous"), "a run that trains cannot take these options"),
    "tune": (request(pbt__tune=["nothing"]), "--pbt.tune nothing cannot be used"),
    "bounds": (request({"learning_rate": 5}), "learning_rate=5 cannot be used: give within 1e-06..0.01"),
    "whole": (request({"unroll": 2.5}), "unroll=2.5 cannot be used: give a whole number within 1.."),
    "name": (request({"shaping.none": 1}), "shaping.none is no value of a member"),
    "member": (
        request({"gamma": 0.9}, [7]),
        "--member 7 cannot be used: the members that train are 0, 1, 2, 3",
    ),
    "half": (request({"gamma": 7}, pbt__mutation_rate=0.5), "gamma=7 cannot be used"),
}


@pytest.mark.long
def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path):
    folder, answers = asking(tmp_path, *(asked for asked, _ in REFUSED.values()))
    assert len(answers) == len(REFUSED)
    for answer, (_, text) in zip(answers, REFUSED.values(), strict=True):
        assert text in answer["refused"]
    assert not events(folder, "set")
    config = json.loads((folder / "config.json").read_text())
    assert config == events(folder, "start")[0]["config"]


@pytest.mark.parametrize(
    ("env", "asked", "text"),
    [
        ("toy/identity", request(evaluate_every_frames=9, evaluate_video=True), "has no pictures"),
        (f"{__name__}:Duel", request(evaluate_every_frames=9), "evaluate-every-frames 9 cannot be used"),
    ],
)
def test_evaluations_that_a_run_could_not_begin_with_are_refused(tmp_path, env, asked, text):
    config = Config(env=env, num_policies=2, devices="cpu", mode="serial")
    resolved = ResolvedRun.resolve(config, Machine(2, 0))
    live = LiveChanges(tmp_path, *[None] * 5)
    (tmp_path / requests.FOLDER).mkdir()
    (tmp_path / requests.FOLDER / "1-1.json").write_text(json.dumps(asked))
    assert live.carry_out(resolved, None) == (resolved, None)
    (answer,) = (tmp_path / requests.FOLDER).glob("*.answer")
    assert text in json.loads(answer.read_text())["refused"]


@pytest.mark.long
def test_a_budget_that_the_learning_rate_follows_is_refused(tmp_path):
    asked = request(train_for_frames=5000)
    _, (answer,) = asking(tmp_path, asked, **{"learner.lr-schedule": "linear"})
    assert "its learning rate falls to 0 there" in answer["refused"]


@pytest.mark.long
def test_a_member_waits_or_is_evaluated_as_before():
    run = Run(simulated(run={"num_policies": 4, "devices": "cpu"}))
    members, learner = run.population.members, run.fleet.learners[0]
    run.comparisons.enact([Continue(1, "", until_frames=900), Evaluate(2, 2, "")])
    asked = [Mutate(m.id, dict(m.values, gamma=0.5), "") for m in members[:3]]
    run.comparisons.set_values(asked)
    assert [m.until_frames for m in members] == [None, 900, None, None]
    assert [m.evaluates for m in members] == [0, 0, 2, 0]
    assert [m.generation for m in members] == [1, 1, 1, 0]
    assert (learner.evaluated, learner.limits) == ({2}, {1: 900})
    run.population.take("0", LearnerReport("cpu", [], [played(2), played(2, evaluation=True)], {}, 0, 0))
    assert members[2].objectives.objectives() == (), "one of its three environments"
    ended = [played(2, environment=i, evaluation=True) for i in (1, 2, 2)]
    run.population.take("0", LearnerReport("cpu", [], ended, {}, 0, 0))
    assert members[2].report().objectives == (7.0, 7.0, 7.0, 7.0), (
        "two and more, of which one of each is enough"
    )


def played(member, environment=0, *, evaluation=False):
    return Episode(member, 1, 7.0, 7.0, 7.0, 5, environment=environment, evaluation=evaluation)


def test_a_search_decides_about_all_values(tmp_path):
    options = {"controller": "hypertrick", "search.phase-frames": 50_000}
    _, (answer,) = asking(tmp_path, request({"gamma": 0.9}), **options)
    assert "--controller hypertrick decides about all values" in answer["refused"]


def test_words_of_the_command_become_options_of_their_type():
    folder, members, pairs = _parted(
        ["runs/x", "--member", "2", "pbt.period_frames=8k", "--pbt.tune=gamma unroll", "--member=0"]
    )
    assert (str(folder), members) == ("runs/x", (2, 0))
    assert _typed(Config(env="toy/identity"), dict(pairs)) == {
        "pbt.period-frames": 8000,
        "pbt.tune": ["gamma", "unroll"],
    }


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gamma=3"], "the folder of a run comes first"),
        ([], "the folder of a run comes first"),
        (["runs/x", "gamma"], "'gamma' cannot be used: write NAME=VALUE"),
        (["runs/x", "=3"], "'=3' cannot be used: write NAME=VALUE"),
        (["runs/x", "--member"], "--member  cannot be used"),
        (["runs/x", "--member", "-1"], "--member -1 cannot be used"),
    ],
)
def test_words_that_are_no_request(words, text):
    with pytest.raises(ConfigError, match=text):
        _parted(words)


@pytest.mark.long
def test_a_run_of_processes_is_changed_from_another_terminal(tmp_path):
    run = helper.train(tmp_path, "toy/shaped", *helper.ENDLESS)
    run.wait_for(helper.PROGRESS)
    for words in (["gamma=0.9", "--member", "1"], ["train-for-frames=1000", "pbt.mutation-rate=0.5"]):
        done = helper.start(tmp_path, "set", "runs/x", *words)
        assert done.wait() == 0
    assert run.wait() == 0
    assert run.summary["ended"] == "frames"
    assert audit(run.folder) == 0
    assert helper.start(tmp_path, "set", "runs/x", "gamma=0.9").wait() == 2
