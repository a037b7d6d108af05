"""One pair of functions saves and restores every controller and every rule."""

import json
import math
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.config import Hypers
from pbt_rl.controllers.changes import changes
from pbt_rl.controllers.entry import ControllerContext
from pbt_rl.controllers.hypers import HyperSpec, choice_spec, hyper_table
from pbt_rl.controllers.options import PbtConfig, SearchConfig
from pbt_rl.controllers.state import ADDED, SHARED, STATE, TRANSIENT, restore_state, save_state
from pbt_rl.registry import CONTROLLERS, EXPLOIT_RULES, EXPLORE_RULES, READY_RULES
from tests.helpers.populations import member, report

TABLE = {name: spec for name, spec in hyper_table(Hypers()).items() if spec.tuned} | {
    "act": choice_spec("act", ("relu", "elu", "tanh"), "relu"),
    "unroll": HyperSpec("unroll", 8, 2, 64, "integer", tuned=True),
}
CASES = [
    *({"controller": "pbt", "exploit": name} for name in EXPLOIT_RULES),
    *({"controller": "pbt", "explore": name} for name in EXPLORE_RULES),
    *({"controller": "pbt", "ready": name} for name in READY_RULES),
    {"controller": "mf-pbt", "exploit": "quantile", "frequencies": (1, 3)},
    {"controller": "mf-pbt", "exploit": "truncation", "frequencies": (1, 2), "migrant_hypers": "best"},
    *({"controller": name} for name, entry in CONTROLLERS.items() if entry.searches),
    {"controller": "hyperband", "sampling": "grid"},
    {"controller": "successive-halving", "allocation": "static"},
]
MEMBERS = 12


def built(case, seed):
    options = dict(case)
    search = {k: options.pop(k) for k in ("sampling", "allocation") if k in options}
    controller = options.pop("controller")
    fast = (
        {"exploit": "truncation", "explore_option": ("candidates=9",)}
        if str(options.get("explore")).startswith("pb2")
        else {}
    )
    pbt = PbtConfig(period_frames=100, start_frames=0, min_episodes=2, **options, **fast)
    given = ControllerContext(
        table=TABLE,
        seed=seed,
        members=MEMBERS,
        slots=4,
        budget_frames=900,
        options=Groups(pbt, SearchConfig(phases=4, resource=9, **search)),
        journal=lambda _run: (),
    )
    return CONTROLLERS[controller].build(given)


class Groups:
    def __init__(self, *groups):
        self.groups = groups

    def group(self, kind):
        return next(group for group in self.groups if isinstance(group, kind))


class Population:
    """Members of different speeds; some break. They follow the decisions."""

    def __init__(self, values, seed):
        self.rng = Random(seed)
        self.values = values
        self.frames = [0] * len(values)
        self.generations = [0] * len(values)
        self.until = [None] * len(values)
        self.stopped = set()

    def report(self):
        members = []
        for i in range(len(self.values)):
            if i in self.stopped:
                continue
            self.frames[i] += self.rng.choice((10, 25, 40))
            if self.until[i] is not None:
                self.frames[i] = min(self.frames[i], self.until[i])
            objectives = [self.rng.choice((math.nan, *[self.rng.gauss(i, 5)] * 30)) for _ in range(3)]
            broken = self.rng.random() < 0.01
            members.append(
                member(
                    i,
                    objectives[: self.rng.choice((1, 3, 3, 3))],
                    frames=self.frames[i],
                    generation=self.generations[i],
                    values=self.values[i],
                    best=max(objectives),
                    broken=broken,
                )
            )
        return report(min((m.frames for m in members), default=0), members)

    def follow(self, decisions):
        for change in changes(decisions, dict(enumerate(self.generations))):
            i = change.member
            self.generations[i] = change.generation
            self.values[i] = change.values or self.values[i]
            self.until[i] = change.until_frames
            if change.stopped:
                self.stopped.add(i)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@settings(max_examples=6)
@given(seed=st.integers(0, 10_000), saved_at=st.integers(0, 60))
def test_a_restored_controller_decides_the_same_ever_after(case, seed, saved_at):
    controller, other = built(case, seed), built(case, seed + 1)
    population = Population(controller.initial(MEMBERS), seed)
    decided = 0
    steps = 14 if str(case.get("explore")).startswith("pb2") else 90
    saved_at %= steps
    for step in range(steps):
        seen = population.report()
        if step == saved_at:
            restore_state(other, json.loads(json.dumps(save_state(controller))))
        before = json.dumps(save_state(controller))
        decisions = controller.observe(seen)
        if not decisions:
            assert json.dumps(save_state(controller)) == before, "an empty answer leaves no state"
        if step >= saved_at:
            assert other.observe(seen) == decisions
            assert other.remembers() == controller.remembers()
            decided += len(decisions)
        population.follow(decisions)
        if len(population.stopped) == MEMBERS:
            break
    assert save_state(other) == save_state(controller) or step < saved_at
    assert decided or saved_at > steps // 3 or population.stopped


def test_every_controller_and_rule_is_in_a_case():
    schedules = {name for name, entry in CONTROLLERS.items() if entry.follows}
    assert {case["controller"] for case in CASES} == CONTROLLERS.keys() - schedules


@dataclass
class Inner:
    factor: float
    _seen: list[float] = field(default_factory=list, init=False)


@dataclass(frozen=True)
class Elite:
    member: int
    generation: int
    depth: int
    objective: float
    values: dict[str, float]


@dataclass
class Everything:
    rules: tuple[Inner, ...]
    inner: Inner
    size: int = 3
    name: str = "setting"
    frames: int = field(default=0, metadata=STATE)
    since: int = field(default=5, metadata=ADDED)
    other: Inner | None = field(default=None, metadata=SHARED)
    later: Inner = field(init=False, metadata=SHARED)
    """Of an owner that is not there yet when the state is saved and restored."""
    newest: deque[float] = field(init=False)
    kind: Literal["a", "b"] = field(default="a", init=False)
    parts: tuple[Inner, ...] = field(default_factory=lambda: (Inner(1.0), Inner(2.0)), init=False)
    _rng: Random = field(default_factory=lambda: Random(7), init=False)
    _by_member: dict[int, list[Elite]] = field(default_factory=dict, init=False)
    _by_pair: dict[tuple[int, str], float] = field(default_factory=dict, init=False)
    _by_name: dict[str, int | None] = field(default_factory=dict, init=False)
    _ids: set[int] = field(default_factory=set, init=False)
    _best: Elite | None = field(default=None, init=False)
    _range: tuple[int, float] = field(default=(0, 0.0), init=False)
    _points: list[tuple[float, ...]] = field(default_factory=list, init=False)
    _begun: bool = field(default=False, init=False)
    _cache: list[int] = field(default_factory=list, init=False, metadata=TRANSIENT)

    def __post_init__(self):
        self.newest = deque(maxlen=self.size)

    def restored(self):
        if self.frames < 0:
            raise ValueError("negative frames")


def everything(*, full, size=3, **settings):
    made = Everything((Inner(1.0), Inner(2.0)), Inner(3.0), size, **settings)
    if full:
        elite = Elite(1, 2, 3, math.inf, {"x": 1.5})
        made.rules[1]._seen.append(4.0)
        made.inner._seen.append(5.0)
        made.parts[1]._seen.append(6.0)
        made.newest.extend((1.0, math.nan, -math.inf))
        made.kind = "b"
        made.frames = 7
        made._rng.gauss(0, 1)  # leaves half of a pair behind
        made._by_member = {3: [elite], 1: []}
        made._by_pair = {(1, "a"): 2.0}
        made._by_name = {"a": None, "b": 2}
        made._ids = {3, 1}
        made._best = elite
        made._range = (4, 5.0)
        made._points = [(1.0, 2.0), ()]
        made._begun = True
    return made


def test_all_kinds_of_fields_come_back_as_they_were():
    shared = Inner(5.0)
    saved, restored = everything(full=True), everything(full=False, size=2, name="new", other=shared)
    saved._cache.append(1)
    restored._cache.append(2)
    shared._seen.append(6.0)
    parts = restored.rules, restored.inner, restored.parts
    text = json.dumps(save_state(saved), allow_nan=False)
    restore_state(restored, json.loads(text))
    assert (restored.name, restored.size, restored.other, shared._seen) == ("new", 2, shared, [6.0])
    assert restored._cache == [], "what can be computed again is not kept"
    assert (restored.newest.maxlen, str(restored.newest)) == (2, "deque([nan, -inf], maxlen=2)")
    assert restored._rng.gauss(0, 1) == saved._rng.gauss(0, 1)
    for name in vars(saved).keys() - {"_cache", "_rng", "name", "size", "other", "newest"}:
        assert getattr(restored, name) == getattr(saved, name), name
    assert list(restored._by_member) == [3, 1], "the order of a dictionary is state, too"
    assert all(a is b for a, b in zip(parts, (restored.rules, restored.inner, restored.parts), strict=True))
    assert restored.rules[1] is parts[0][1], "rules inside are restored in place"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"frames": 1.5}, r"Everything.frames: .* 1.5 .*: Expected `int`"),
        ({"frames": -1}, "negative"),
        ({"kind": "c"}, r"Everything.kind: .* 'c' .*: Invalid enum"),
        ({"newest": [1.0, "one"]}, r"newest: .* 'one' .*: Expected `float`"),
        ({"newest": [10**400]}, r"newest: .* 1000"),
        ({"parts": [{"class": "Inner", "_seen": []}]}, "parts: 1 .* 2"),
        ({"parts": None}, "Everything.parts: .* None"),
        ({"_best": {"member": 1}}, "Everything._best: .* Elite"),
        ({"_by_pair": {"a": 1.0}}, "Everything._by_pair: "),
        ({"_rng": [3, [1, 2], None]}, "random"),
        ({"more": 1}, "Everything: .*'more'"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(change, match):
    with pytest.raises(ValueError, match=match):
        restore_state(everything(full=True), save_state(everything(full=True)) | change)


def test_a_missing_part_and_a_state_that_is_none_are_refused():
    state = save_state(everything(full=True))
    del state["frames"]
    with pytest.raises(ValueError, match=r"Everything: .*'frames'"):
        restore_state(everything(full=True), state)
    with pytest.raises(ValueError, match=r"x.y: .* \[\]"):
        restore_state(everything(full=True), [], "x.y")


def test_a_field_that_was_added_later_keeps_its_default():
    state = save_state(everything(full=True))
    assert state.pop("since") == 5
    restored = everything(full=True)
    restore_state(restored, state)
    assert restored.since == 5
    restore_state(restored, state | {"since": 9})
    assert restored.since == 9


def test_a_rule_that_noted_nothing_may_give_way_to_another():
    restored = everything(full=True)
    before = json.dumps(save_state(restored))
    restore_state(restored, {"class": "Stateless", "rules": [{"class": "Perturb"}]})
    assert json.dumps(save_state(restored)) == before


def test_the_state_of_another_rule_is_refused():
    state = save_state(everything(full=True))
    state["inner"]["class"] = "Outer"
    with pytest.raises(ValueError, match=r"Everything\.inner: .*Outer.* Inner"):
        restore_state(everything(full=False), state)


def test_a_saved_state_does_not_change_with_its_owner():
    made = everything(full=True)
    state = save_state(made)
    before = json.dumps(state)
    made.inner._seen.append(6.0)
    made._by_member[3].append(made._best)
    made._best.values["x"] = 9.0
    assert json.dumps(state) == before
