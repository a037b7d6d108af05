"""The supervisor over a fleet that only pretends: which messages it sends, how it ends, what it records."""

import dataclasses
import json
import os
import re
import signal
import time
from itertools import chain

import numpy as np
import pytest

from pbt_rl.actors.messages import (
    Acknowledgement,
    Episode,
    LearnerReady,
    LearnerReport,
    LearnerSaved,
    Load,
    MemberStats,
    PauseTraining,
    Save,
    Saved,
    SaveLearner,
    SetValues,
)
from pbt_rl.actors.state_pool import Counts, StatePool
from pbt_rl.errors import ConfigError, RunFailed
from pbt_rl.population.store import Store
from pbt_rl.record.checkpoints import Checkpoints, NetNames
from pbt_rl.record.run_lock import lock_run_folder
from pbt_rl.run import supervisor as module
from pbt_rl.run.fleet import ActorFailed, LearnerLost, MachineLeaving, Received
from pbt_rl.run.supervisor import Supervisor
from tests.helpers.plans import resolved

OPTIONS = (
    "--num-policies=4 --devices=cpu --no-figures --train-for-frames=3000 --pbt.period-frames=1000"
    " --pbt.start-frames=1000 --pbt.min-episodes=1 --pbt.replace-fraction=0.5 --max-actor-restarts=2"
)


NAMES = NetNames((("body.w", 0, (3,)),), 3)
LAYOUT = (("param", "<f4", (3,)), ("optimizer_steps", "<f8", ()), ("lr_factor", "<f4", ()))


class FakeInitialiser:
    """See `population.store.Initialiser`."""

    def initialised(self, member, generation):
        initialised = {name: np.zeros(np.shape(0), dtype) for name, dtype, _ in LAYOUT}
        return initialised | {"param": np.full(3, 100.0 * member + generation, np.float32)}


class FakeFleet:
    """Yields a script's events, one list per call, and answers edits and snapshots at once."""

    settled = True

    def __init__(self, script):
        self.script = iter(script)
        self.sent, self.answers, self.restarted = [], [], []
        self.answered = 1
        self.closed = self.at_once = False
        self.silent = 0.0
        self.killed, self.began = [], []
        self.pool = StatePool(LAYOUT)

    def events(self, _timeout_seconds):
        answers, self.answers = self.answers, []
        if answers:
            yield from answers
            return
        for event in next(self.script, []):
            if callable(event):
                event()
            else:
                yield event

    def send(self, pack, message):
        self.sent.append((pack, message))
        match message:
            case Load(member=None):
                pass
            case Load() | SetValues():
                self.answers.append(Received(pack, ack(message)))
            case SaveLearner(number):
                self.answers.append(Received(pack, LearnerSaved(number, {"slots": []})))
            case Save(member, key, entry):
                arrays = {name: np.full(shape, member, dtype) for name, dtype, shape in LAYOUT}
                self.pool.write(entry, arrays, Counts(10, 10, 1, 0))
                self.answers.append(Received(pack, Saved(key, entry)))

    def save_vector_envs(self):
        return []

    def restart_actor(self, actor):
        self.restarted.append(actor)

    def environment_seconds(self):
        return 0.0

    def actions_given(self, _actor):
        return self.answered

    def learns(self):
        return False

    def heartbeat_age_seconds(self, _pack):
        return self.silent

    def waits(self, _pack):
        return False

    def kill(self, pack):
        self.killed.append(pack)

    def replace_learner(self, pack, start):
        loads = [load for load in start.slots[pack] if load is not None]
        arrays = [
            self.pool.read(load.entry)
            if load.entry is not None
            else INITIALISER.initialised(*load.initialised)
            for load in loads
        ]
        self.began.append((pack, [*zip(loads, arrays, strict=True)]))
        self.answers.append(READY)

    def close(self, *, at_once=False):
        self.closed = True
        self.at_once = at_once


INITIALISER = FakeInitialiser()


def ack(edit):
    return Acknowledgement(edit.member, edit.donor, edit.generation, 2.5, {}, {}, {}, donor_unchanged=True)


ENVIRONMENTS = 32
"""Of each member: 2 actors with 2 vector envs of 8 rows of it."""


def report(frames, *, best=3):
    """All members have these frames and an episode of each environment; `best` has the highest objective."""
    members = [MemberStats(m, frames, frames, frames // 10) for m in range(4)]
    scores = [1.0 if m == best else m / 10 for m in range(4)]
    each = [(m, environment) for m in range(4) for environment in range(ENVIRONMENTS)]
    episodes = [Episode(m, 0, scores[m], 0.0, 0.0, 5, environment=environment) for m, environment in each]
    return Received(0, LearnerReport("cpu", members, episodes, {}, 0, 0))


READY = Received(0, LearnerReady())


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that runs a supervisor over a script: (fleet, run), where run() returns the exit code."""

    def make(script, *options, spread=False):
        run = resolved("toy/identity", *OPTIONS.split(), *options, "--name=x", f"--out={tmp_path}")
        locked = lock_run_folder(run.config)
        fleet = FakeFleet(script)
        monkeypatch.setattr(module, "ProcessFleet", lambda *_: fleet)
        store = Store(fleet.pool, INITIALISER)
        monkeypatch.setattr(module, "make_store", lambda *_: (store, fleet.pool, NAMES))
        fleet.store = store
        supervisor = Supervisor(dataclasses.replace(run, config=locked.config, spread=spread), locked)

        def train():
            try:
                return supervisor.run()
            finally:
                locked.release(failed=False)

        return fleet, train

    return make


def events(tmp_path, kind=None):
    lines = (tmp_path / "x" / "journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if kind in (None, event["event"])]


def until(tmp_path, name):
    """Events, none, until there is a checkpoint."""
    deadline = time.monotonic() + 30
    while name not in saved(tmp_path) and time.monotonic() < deadline:
        yield [lambda: time.sleep(0.01)]
    yield []


def kept(tmp_path):
    return [e["at_frames"] for e in events(tmp_path, "checkpoint") if e["kept"]]


def saved(tmp_path):
    return sorted(path.name for path in (tmp_path / "x" / "checkpoints").glob("*"))


def test_a_run_compares_applies_saves_and_ends_with_its_frames(start, tmp_path):
    fleet, run = start([[READY], [report(1000)], [], [report(3000)]])
    assert run() == 0
    assert fleet.closed
    edits = [message for _, message in fleet.sent if isinstance(message, Load | SetValues)]
    assert edits
    assert edits[0].of_slot == edits[0].donor
    assert edits[0].donor in (2, 3), "a better one"
    assert saved(tmp_path) == ["at_3000"]
    assert [type(m) for _, m in fleet.sent].index(PauseTraining) > max(
        n for n, (_, m) in enumerate(fleet.sent) if isinstance(m, Load | SetValues)
    )
    applied = events(tmp_path, "applied")
    assert [(e["member"], e["donor"]) for e in applied] == [(e.member, e.donor) for e in edits]
    assert applied[0]["decision_to_applied_milliseconds"] >= applied[0]["milliseconds_until"]["sent"] > 0
    assert events(tmp_path)[-1]["ended"] == "frames"
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert summary["ended"] == "frames"
    assert summary["replacement_milliseconds"]["max"] == 2.5


def test_no_comparison_while_decisions_are_on_their_way(start, tmp_path):
    fleet, run = start([[READY], [report(1000), report(2000)], [report(2500)], [report(3000)]])
    assert run() == 0
    assert [event["frames"] for event in events(tmp_path, "round")] == [1000, 2500], (
        "not 2000, while decisions were on their way, nor 3000, where the budget is spent"
    )
    assert fleet.closed


@pytest.mark.parametrize("options", [[], ["--pbt.no-enabled"]])
def test_members_that_cannot_learn_are_a_warning_once(start, tmp_path, capsys, options):
    """With PBT, which gives them new weights, and without."""

    def broken(frames):
        received = report(frames)
        members = [dataclasses.replace(m, broken=m.member == 2) for m in received.message.members]
        return Received(0, dataclasses.replace(received.message, members=members))

    _, run = start([[READY], [broken(500)], [broken(1000)], [report(3000)]], *options)
    assert run() == 0
    assert capsys.readouterr().out.count("member 2 cannot learn") == 1
    assert [event for event in events(tmp_path, "remark") if "member 2 cannot learn" in event["text"]]


def test_a_signal_ends_the_run_in_order(start, tmp_path):
    fleet, run = start([[READY], [lambda: os.kill(os.getpid(), signal.SIGTERM)]])
    before = signal.getsignal(signal.SIGTERM)
    assert run() == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert fleet.closed
    assert saved(tmp_path) == ["at_10"]
    assert events(tmp_path)[-1]["ended"] == "interrupted by SIGTERM"


def test_a_signal_that_was_ignored_at_the_start_stays_ignored(start, tmp_path):
    """As SIGHUP is under `nohup`, and SIGINT in a script's background job."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hang_up, end = ([lambda n=n: os.kill(os.getpid(), n)] for n in (signal.SIGHUP, signal.SIGTERM))
        _, run = start([[READY], hang_up, end])
        assert run() == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert events(tmp_path)[-1]["ended"] == "interrupted by SIGTERM"


LOST = LearnerLost(0, "learner 0 (cpu) was killed by SIGKILL")


def test_a_lost_learner_is_replaced_and_its_members_go_on_from_the_checkpoint(start, tmp_path, capsys):
    script = chain(
        [[READY], [report(400)], [report(900)]],
        until(tmp_path, "at_800"),
        [[report(1000)], [], [report(1500)], [LOST], [], [report(1600)], [report(3000)]],
    )
    fleet, run = start(script, "--save-every-frames=800")
    assert run() == 0
    assert fleet.killed == [0]
    ((pack, members),) = fleet.began
    assert pack == 0
    (lost,) = events(tmp_path, "pack_lost")
    assert (lost["kind"], lost["cause"], lost["frames"]) == ("died", LOST.text, 1500)
    copied = {e["member"]: e["donor"] for e in events(tmp_path, "applied") if e["frames"] == 1000}
    assert copied
    for entry, (load, arrays) in zip(lost["members"], members, strict=True):
        member = load.member
        donor = copied.get(member, member)
        source = {"checkpoint": "at_800", "member": donor}
        assert entry == {"member": member, "frames_lost": 600, "from": source}
        assert arrays["param"].tolist() == [donor] * 3, "never its own weights of before"
        assert (load.counts.frames, load.generation) == (1500, int(member in copied))
    kinds = [event["event"] for event in events(tmp_path)]
    assert kinds[kinds.index("pack_lost") + 1 :][:4] == ["slot"] * 4
    assert json.loads((tmp_path / "x" / "summary.json").read_text())["learners_replaced"] == 1
    assert re.search(r"\b0, 1, 2, 3 .*\b600 ", capsys.readouterr().out)


def test_what_only_the_user_can_mend_of_a_learner_ends_the_run_with_its_words(start):
    fleet, run = start([[READY], [LearnerLost(0, "cuda:0 has too little memory", user_error=True)]])
    with pytest.raises(ConfigError, match=r"^cuda:0 has too little memory$"):
        run()
    assert (fleet.killed, fleet.closed) == ([0], True)


def test_edits_on_their_way_to_a_lost_learner_are_part_of_what_its_successor_begins_with(start, tmp_path):
    def lose(fleet):
        fleet.answers.clear()  # no edit was applied

    script = [
        [READY],
        [report(400)],
        [report(1000), lambda: lose(fleet), LOST],
        [report(1100)],
        [report(2500)],
        [report(3000)],
    ]
    fleet, run = start(script)
    assert run() == 0
    first = events(tmp_path, "round")[0]["decisions"]
    decided = {d["member"]: d for d in first if d["decision"] == "replace"}
    assert decided
    ((_, members),) = fleet.began
    for member, decision in decided.items():
        load, arrays = members[member]
        assert arrays["param"].tolist() == [100.0 * decision["donor"]] * 3, "drawn, as never saved"
        assert load.generation == 1
        assert load.values == decision["values"]
    assert not [e for e in events(tmp_path, "applied") if e["frames"] == 1000]
    assert [e["frames"] for e in events(tmp_path, "round")] == [1000, 2500], "the run goes on to compare"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([[READY], [LOST]], "trained"),
        ([[READY], [report(100)], [report(200)], [LOST]], "initial weights"),
        ([[READY], [report(100)], [report(200)], [LOST], [report(300)], [LOST]], "trained"),
        ([[READY], *[[report(100 * n), report(100 * n + 50), LOST] for n in range(1, 4)]], "2 learners"),
    ],
    ids=["at once", "never saved", "again at once", "too often"],
)
def test_a_learner_that_cannot_be_helped_ends_the_run(start, tmp_path, script, why):
    fleet, run = start(script, *["--save-every-seconds=0"] * (why == "initial weights"))
    with pytest.raises(RunFailed, match="SIGKILL\n.*" + why):
        run()
    assert fleet.closed
    assert events(tmp_path)[-1]["ended"] == "failed"


def test_a_learner_that_does_not_answer_at_the_end_is_not_waited_for(start, tmp_path):
    fleet, run = start([[READY], [lambda: setattr(fleet, "silent", 60.0), report(3000)]])
    fleet.send = lambda *_: None
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"learner 0 .*answer"):
        run()
    assert time.monotonic() - began < 20
    assert saved(tmp_path) == []


def test_a_learner_in_the_midst_of_a_long_rollout_is_waited_for(start, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.2)
    monkeypatch.setattr(module, "SAY_SECONDS", 0.5)
    fleet, run = start([[READY], [report(3000)]])
    send, events_of, late = fleet.send, fleet.events, []

    def send_late(pack, message):
        if isinstance(message, SaveLearner):
            late.append((time.monotonic() + 1.0, pack, message))
        else:
            send(pack, message)

    def events_late(seconds):
        if late and time.monotonic() > late[0][0]:
            send(*late.pop()[1:])
        time.sleep(0.01)
        yield from events_of(seconds)

    fleet.send, fleet.events = send_late, events_late
    assert run() == 0
    assert len(saved(tmp_path)) == 1
    assert "rollout" in capsys.readouterr().out


def test_a_second_ctrl_c_saves_nothing_and_gives_learners_no_time(start, tmp_path):
    def press():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.15)

    fleet, run = start([[READY], [press, press, report(500)]])
    assert run() == 128 + signal.SIGINT
    assert fleet.at_once
    assert saved(tmp_path) == []
    assert events(tmp_path)[-1]["ended"] == "interrupted by SIGINT"


def test_actors_are_restarted_until_it_happens_too_often(start, tmp_path, capsys):
    text = "Traceback\nValueError: lost"
    fleet, run = start([[READY], *[[ActorFailed(n % 2, text, hung=n == 1)] for n in range(3)]])
    with pytest.raises(RunFailed, match=r"\b3 times.*--max-actor-restarts 2"):
        run()
    assert fleet.restarted == [0, 1]
    assert saved(tmp_path) == ["at_10"], "the learner lives"
    restarts = events(tmp_path, "actor_restart")
    assert [(e["actor"], e["kind"][6:]) for e in restarts] == [(0, "died"), (1, "hung"), (0, "died")]
    assert re.search(r"\(2 times\).*: ValueError: lost", capsys.readouterr().out)


def test_checkpoints_are_kept_when_due_beside_the_newest(start, tmp_path):
    script = chain([[READY], [report(900)]], until(tmp_path, "at_800"), [[report(1500)]])
    script = chain(script, until(tmp_path, "at_1200"), [[report(3000)]])
    fleet, run = start(script, "--save-every-frames=400", "--keep-checkpoints=1")
    assert run() == 0
    assert saved(tmp_path) == ["at_1200", "at_2800", "at_800"]
    assert kept(tmp_path) == [800, 1200, 2800]
    assert fleet.closed


def test_a_checkpoint_that_cannot_be_written_is_said_once_and_training_goes_on(start, tmp_path, capsys):
    script = [[READY], [report(900)], [], [], [], [report(1500)], [], [], [], [report(3000)]]
    fleet, run = start(script, "--save-every-frames=400")
    (tmp_path / "x" / "checkpoints").write_text("in the way")
    with pytest.raises(RunFailed, match=r"\(frames\).*never saved"):
        run()
    assert events(tmp_path)[-1]["ended"] == "frames"
    assert json.loads((tmp_path / "x" / "summary.json").read_text())["saved_at_frames"] is None
    assert capsys.readouterr().out.count("not be saved") == 1
    assert fleet.closed


def test_a_checkpoint_to_be_kept_is_made_up_for_once_there_is_room(start, tmp_path, monkeypatch):
    monkeypatch.setattr("pbt_rl.run.checkpointing.AGAIN_SECONDS", 0.0)
    folder = tmp_path / "x" / "checkpoints"
    script = [[READY], [report(900)], [], [], [folder.unlink]]
    _, run = start(chain(script, until(tmp_path, "at_800"), [[report(3000)]]), "--save-every-frames=400")
    folder.write_text("in the way")
    assert run() == 0
    assert kept(tmp_path) == [800, 2800]


def test_a_checkpoint_to_be_kept_is_made_up_for_if_a_learner_is_lost_meanwhile(start, tmp_path):
    script = [[READY], [report(300)], [report(900)], [LOST], [], [report(910)]]
    fleet, run = start(chain(script, until(tmp_path, "at_800"), [[report(3000)]]), "--save-every-frames=400")
    unheard, send = [], fleet.send

    def lose_the_first(pack, message):
        if isinstance(message, SaveLearner) and not unheard:
            unheard.append(message)
        else:
            send(pack, message)

    fleet.send = lose_the_first
    assert run() == 0
    assert unheard
    assert kept(tmp_path) == [800, 2800]


def test_a_signal_of_the_scheduler_saves_and_training_goes_on(start, tmp_path):
    ask = [report(900), lambda: os.kill(os.getpid(), signal.SIGUSR1)]
    _, run = start(chain([[READY], ask], until(tmp_path, "at_900"), [[report(3000)]]))
    assert run() == 0
    assert [event["at_frames"] for event in events(tmp_path, "checkpoint")] == [900, 3000]
    assert kept(tmp_path) == []


def test_a_disk_that_is_full_for_a_while_costs_no_event(start, tmp_path, faulty_disk, monkeypatch, capsys):
    monkeypatch.setattr("pbt_rl.record.append.RETRY_SECONDS", 0.0)

    def full():
        faulty_disk.room = 0

    def free():
        faulty_disk.room = None

    script = [[READY], [full, report(1000)], [], [report(1500)], [], [free, report(2000)], [], [report(3000)]]
    fleet, run = start(script)
    assert run() == 0
    assert fleet.closed
    kinds = [event["event"] for event in events(tmp_path)]
    assert kinds[:2] == ["start", "initial"]
    assert [event["frames"] for event in events(tmp_path, "round")] == [1000, 2000]
    assert kinds[-1] == "end"
    shown = capsys.readouterr().out
    assert re.findall(r"journal\.jsonl .*(No space|again)", shown) == ["No space", "again"]


def test_a_run_whose_end_cannot_be_written_ends_all_the_same(start, tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    _, run = start([[READY], [report(1000)], [lambda: monkeypatch.setattr("os.fsync", full)], [report(3000)]])
    with pytest.raises(RunFailed, match=r"saved .*No space"):
        run()
    assert re.search(r"summary\.json .*No space", capsys.readouterr().out)
    assert events(tmp_path)[-1]["event"] == "end"
    assert not list((tmp_path / "x").glob(".summary*"))


def test_a_replaced_run_is_deleted_at_the_first_report(start, tmp_path):
    _, run = start([[READY], [report(3000)]])
    assert run() == 0
    (tmp_path / "x" / "old").touch()
    there = []

    def look():
        there.append([(path / "old").exists() for path in tmp_path.iterdir() if "replaced" in path.name])

    def wait():  # a thread deletes it
        deadline = time.monotonic() + 20
        while any("replaced" in path.name for path in tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        look()

    _, run = start([[READY], [look], [report(1000), wait], [report(3000)]], "--overwrite")
    assert run() == 0
    assert there == [[True], []]


def test_a_pack_whose_machine_was_left_is_saved_from_its_checkpoint_until_it_has_another(start, tmp_path):
    leaving = MachineLeaving(LearnerLost(0, "its node is being taken away", machine=True))

    def interrupt_once_left():
        deadline = time.monotonic() + 30
        while not fleet.killed and time.monotonic() < deadline:
            yield [lambda: time.sleep(0.01)]
        yield [lambda: os.kill(os.getpid(), signal.SIGTERM)]

    script = chain([[READY], [report(500)], [leaving]], interrupt_once_left())
    fleet, run = start(script, "--nodes=ray", spread=True)
    fleet.waits = lambda _pack: True
    fleet.replace_learner = lambda *_: fleet.sent.clear()  # there is no other machine
    assert run() == 128 + signal.SIGTERM
    assert fleet.killed == [0]
    assert saved(tmp_path) == ["at_500", "at_500_2"]
    for checkpoint in Checkpoints(tmp_path / "x" / "checkpoints").all():
        params = [checkpoint.load(member, NAMES).arrays["param"].tolist() for member in range(4)]
        assert params == [[member] * 3 for member in range(4)]
    assert {one["frames_lost"] for one in events(tmp_path, "pack_lost")[0]["members"]} == {0}
    assert not [message for _, message in fleet.sent if isinstance(message, SaveLearner)]
