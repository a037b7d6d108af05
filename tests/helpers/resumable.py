"""A run without processes: the parts of the supervisor over learners that only pretend, saved and resumed.

What a learner tells depends on its member alone (id, frames, values), so that two runs are equal as long as the
supervisor's parts are.
"""

import json
import math
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace

import numpy as np

from pbt_rl.actors.messages import (
    Acknowledgement,
    Episode,
    EvaluateMember,
    Game,
    LearnerReport,
    Load,
    MemberStats,
    Save,
    Saved,
    SetValues,
    TrainUntil,
)
from pbt_rl.actors.state_pool import Counts, MemberSnapshot, SnapshotHeader
from pbt_rl.config import Config, Hypers
from pbt_rl.controllers.decisions import decision_to_dict
from pbt_rl.controllers.hypers import hyper_table
from pbt_rl.controllers.options import PbtConfig
from pbt_rl.controllers.state import restore_state
from pbt_rl.plan import Machine, make_plan
from pbt_rl.population.matchups.run_matchups import ratings_of
from pbt_rl.population.population import Population
from pbt_rl.population.store import Store
from pbt_rl.record.folder import to_json
from pbt_rl.record.journal import as_json_types
from pbt_rl.run.comparisons import Comparisons, make_slots
from pbt_rl.run.resolved import build_controller
from pbt_rl.run.resuming import controller_state, restore_run_state, run_state
from pbt_rl.run.throughput import Throughput
from tests.helpers.states import FakeInitialiser, FakePool

TABLE = hyper_table(Hypers())
ENVIRONMENTS = 3


def drawn(*about):
    """A generator that depends on these things only."""
    return Random(repr(about))


@dataclass
class Learner:
    """The members of one pack at a learner: who holds which slot, their frames and limits."""

    tasks: int
    agents: int
    environments: int
    """Of each member."""
    broken: float
    """Probability that a member breaks or has an objective that is not finite."""
    assigned: dict[int, Load] = field(default_factory=dict)
    frames: dict[int, int] = field(default_factory=dict)
    limits: dict[int, int] = field(default_factory=dict)
    discarded: int = 0
    evaluated: set[int] = field(default_factory=set)

    def report(self) -> LearnerReport:
        """Train everyone who may train, and tell."""
        stats, episodes, players = [], [], []
        self.discarded += 1
        for _, held in sorted(self.assigned.items()):
            m, before = held.member, self.frames.get(held.member, 0)
            rng = drawn(m, before, held.values)
            now = min(before + rng.randrange(60, 140), self.limits.get(m, 10**12))
            self.frames[m] = max(now, before)
            broken = rng.random() < self.broken
            values = {"lag": rng.random(), "entropy": math.nan if broken else rng.random()}
            stats.append(MemberStats(m, now, now, now, values, held.generation, broken))
            if now > before:
                players.append(held)
                episodes += self._episodes(held, rng)
        return LearnerReport("cpu", stats, episodes, {}, len(players), self.discarded, self._games(players))

    def _episodes(self, held, rng):
        score = -abs(math.log10(held.values["learning_rate"]) + 3) + rng.gauss(0, 0.3)
        if rng.random() < self.broken:
            score = rng.choice((math.nan, math.inf))
        return [
            Episode(
                held.member,
                held.generation,
                score + task,
                score,
                -score,
                7,
                {"won": 0.5},
                task,
                environment,
                held.member in self.evaluated,
            )
            for task in range(self.tasks)
            for environment in (rng.randrange(self.environments), rng.randrange(self.environments))
        ]

    def _games(self, players):
        if self.agents == 1 or len(players) < 2:
            return []
        pairs = zip(players, [*players[1:], players[0]], strict=True)
        return [
            Game(
                (a.member, b.member),
                (a.generation, b.generation),
                tuple(drawn(a.member, b.member, self.frames[a.member]).choices((0.0, 1.0), k=2)),
            )
            for a, b in pairs
        ]


PBT = {
    "period_frames": 300,
    "start_frames": 300,
    "min_episodes": 1,
    "mutation_rate": 0.5,
    "objective_episodes": 9,
}
TIME_SLICES = {"num_policies": 8, "slots": 6, "slot_frames": 150, "devices": "cpu,cpu"}


def small_config(controller="pbt", frames=1_500, run=TIME_SLICES, **pbt):
    """Return the options of a run of some comparisons, whose members take turns. run: options of the run."""
    return Config(
        env="toy/simulated",
        seed=3,
        controller=controller,
        train_for_frames=frames,
        pbt=PbtConfig(**PBT | pbt),
        **run,
    )


class Fleet:
    """Learners that answer at once, and what was sent to them and recorded about them."""

    def __init__(self, learners, pool):
        self.learners, self._pool, self.answers, self.log = learners, pool, [], []
        self.journal = []

    def send(self, pack, message):
        self.log.append((pack, _whoever_has_the_bytes(message)))
        learner = self.learners[pack]
        match message:
            case Load(slot, None):
                learner.assigned.pop(slot, None)
            case Load(slot, member, generation):
                learner.assigned[slot] = message
                self._acknowledge(member, message.donor, generation)
            case Save(member, key, entry):
                self._pool.write(entry, {"param": np.zeros(2)}, Counts(learner.frames.get(member, 0)))
                self.answers.append(lambda run: run.comparisons.note_saved(Saved(key, entry)))
            case TrainUntil(member, frames):
                learner.limits[member] = frames
            case EvaluateMember(member, begins):
                (learner.evaluated.add if begins else learner.evaluated.discard)(member)
            case SetValues(member, generation, values, donor):
                for slot, held in learner.assigned.items():
                    if held.member == member:
                        learner.assigned[slot] = replace(held, generation=generation, values=values)
                self._acknowledge(member, donor, generation)

    def _acknowledge(self, member, donor, generation):
        ack = Acknowledgement(member, donor, generation, float(generation), {}, {}, {}, donor_unchanged=True)
        self.answers.append(lambda run: run.comparisons.note_applied(ack))

    def set_matchup(self, pack, row_UES):
        self.log.append((pack, row_UES.tolist()))
        return 0

    def decided(self, report, decisions):
        self.log.append((report, decisions))
        self.journal.append(
            {"event": "round", "report": report, "decisions": [decision_to_dict(d) for d in decisions]}
        )

    def slot_held(self, pack, change):
        place = {"pack": pack, "slot": change.slot, "leaves": change.leaves, "enters": change.enters}
        self.journal.append({"event": "slot", **place})

    def applied(self, ack, _waited):
        self.log.append(ack)

    def matchup(self, *_):
        pass

    def write(self, event, **content):
        self.log.append((event, content))

    note = matchup


def _whoever_has_the_bytes(message):
    """A message without what depends on where states are: that differs in a run that was resumed."""
    if isinstance(message, Load):
        return replace(message, entry=None, initialised=None, counts=Counts())
    return replace(message, key=0, entry=0) if isinstance(message, Save) else message


class Run:
    """One run of a config. agents, tasks: of its environment."""

    def __init__(self, config: Config, *, agents=1, tasks=(), broken=0.02, state=None):
        """state: of the run that this one resumes."""
        self.config, self.now = config, 0.0
        self._again = {"agents": agents, "tasks": tasks, "broken": broken}
        plan = make_plan(config, Machine(4, 0), agents)
        resolved = SimpleNamespace(
            config=config, plan=plan, spec=SimpleNamespace(agents=agents), spread=False
        )
        self.controller = build_controller(config, TABLE, config.seed)
        self.population = Population(
            self.controller.initial(config.num_policies),
            config.pbt.objective_episodes,
            4,
            ratings=ratings_of(config, resolved.spec),
            tasks=tasks,
            task_cap=50.0 if tasks else None,
            min_rounds=config.pbt.min_episodes,
            environments=dict.fromkeys(range(config.num_policies), ENVIRONMENTS),
            timeout_frames=500,
        )
        pool = FakePool()
        learners = [Learner(len(tasks) or 1, agents, ENVIRONMENTS, broken) for _ in plan.packs]
        self.fleet = Fleet(learners, pool)
        self.throughput = Throughput(lambda: self.now)
        slots = make_slots(resolved, self.population)
        end = SimpleNamespace(why=None)
        self.comparisons = Comparisons(
            resolved, self.population, slots, self.controller, self.fleet, end, float
        )
        self.same_plan = None if state is None else self._restore(state)
        self.initial = [dict(m.initial) for m in self.population.members]
        self.comparisons.note_first_slots(range(len(plan.packs)))
        dispatch = self.comparisons.dispatch
        dispatch.open_store(Store(pool, FakeInitialiser()), self._saved())
        for pack, learner in enumerate(self.fleet.learners):
            loads = [load for load in dispatch.first_loads(pack) if load is not None]
            learner.assigned = {load.slot: load for load in loads}
            dispatch.started(pack)
        self.matchups = [rows.tolist() for rows in self.comparisons.first_matchups()]
        self.comparisons.send_to(self.fleet)
        if state is None:
            self.comparisons.exchange(self.comparisons.compare())
            self._answer()
        else:
            self.comparisons.go_on({})

    def _restore(self, state):
        restore_state(self.controller, controller_state(state), "controller")
        same_plan = restore_run_state(state, self.population, self.comparisons, self.throughput)
        for pack, learner in enumerate(self.fleet.learners):
            learner.frames = {m: self.population.members[m].frames for m in self._members(pack)}
        return same_plan

    def _saved(self):
        """What reads the states that were saved; they hold nothing here."""

        def reader(member, generation, frames, *, remembered):
            header = SnapshotHeader(member, generation, {}, frames, 0, 0, 0, remembered)
            return lambda: MemberSnapshot(header, FakeInitialiser().initialised(member, 0))

        if self.same_plan is None:
            return {}
        own = {
            (m.id, None): reader(m.id, m.generation, m.frames, remembered=False)
            for m in self.population.members
        }
        return own | {key: reader(*key, 0, remembered=True) for key in self.comparisons.dispatch.remembered}

    def _members(self, pack):
        return self.comparisons.slots.packs[pack].members

    def _answer(self):
        while self.fleet.answers:
            self.fleet.answers.pop(0)(self)

    def report(self):
        """Let every learner report once."""
        for pack, learner in enumerate(self.fleet.learners):
            self.now += 1.0
            told = learner.report()
            self.population.take(str(pack), told)
            self.throughput.note(self.population.frames, {})
            self.comparisons.note_report(pack)
            self._answer()

    @property
    def over(self):
        least = self.population.least_frames >= self.config.train_for_frames and not self.config.searches
        return least or self.population.all_stopped or self.comparisons.slots.stuck

    def state(self):
        """The state as it lies in a file."""
        parts = (self.controller, self.population, self.comparisons, self.throughput)
        return json.loads(json.dumps(run_state(*parts), allow_nan=False))

    def resumed(self, state=None, config=None):
        """A run that goes on from a state, by default from this one's."""
        return Run(config or self.config, **self._again, state=self.state() if state is None else state)

    def take_log(self):
        """What happened since the last call: messages, decisions, matchups, and everything that a display shows."""
        log, self.fleet.log = self.fleet.log, []
        population, dispatch = self.population, self.comparisons.dispatch
        counts = (population.lag_mean, population.lag_max, population.discarded)
        counts += (dispatch.replacements, dispatch.mutations, [*self.comparisons.replacement_times])
        return json.dumps(
            as_json_types([log, population.views(), counts]),
            default=lambda decision: as_json_types(decision_to_dict(decision)),
        )

    def events(self):
        """The journal, all at one second per event."""
        first = [
            {
                "event": "start",
                "config": to_json(self.config),
                "seed": self.config.seed,
                "versions": {},
                "git": None,
            }
            | {"spec": {"shaping": {}, "frame_skip": 4}},
            {"event": "initial", "values": self.initial},
        ]
        return stamped([*first, *self.fleet.journal])


def stamped(events, begin=0.0):
    """Events as lines of a journal hold them, a second apart."""
    return [
        as_json_types({"time": begin + i, "frames": e["report"].frames if "report" in e else 0, **e})
        for i, e in enumerate(events)
    ]
