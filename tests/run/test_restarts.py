"""When an actor is replaced and when the run ends: by the rate of failures, and by what came of the last restart."""

import re
from types import SimpleNamespace

import pytest

from pbt_rl.config import Config
from pbt_rl.errors import EnvSetupError, RunFailed
from pbt_rl.run import lost as module
from pbt_rl.run.fleet import ActorFailed
from pbt_rl.run.lost import FEW_STEPS, MAX_ERROR_CHARACTERS, WORKED_STEPS, ActorRestarts

LIMIT = 3
CRASH = ActorFailed(0, "Traceback\nValueError: lost")
BREACH = ActorFailed(0, "own:env breaks its contract: the reward must be finite, got nan", user_error=True)


class World:
    """A fleet, a recorder and a clock."""

    def __init__(self, monkeypatch):
        self.seconds, self.steps, self.shown, self.recorded, self.restarted = 0.0, {}, [], [], []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.seconds))
        self.restarts = ActorRestarts(Config(env="own:env", max_actor_restarts=LIMIT), self)

    def fail(self, failed=CRASH, *, after_seconds=1.0, after_steps=10_000):
        """Let an actor fail, this long and this many steps of its vector envs after the last failure."""
        self.seconds += after_seconds
        self.steps[failed.actor] = self.steps.get(failed.actor, 0) + after_steps
        self.restarts.replace(self, failed)

    def actions_given(self, actor):
        return self.steps[actor]

    def restart_actor(self, actor):
        self.restarted.append(actor)

    def actor_restarted(self, failed, cause):
        self.recorded.append(failed)
        self.shown.append(cause)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_what_fails_once_in_a_while_never_ends_a_run(world):
    for _ in range(10 * LIMIT):
        world.fail(after_seconds=301.0)
    assert world.restarts.count == len(world.restarted) == 10 * LIMIT


def test_many_failures_within_the_window_end_it_with_the_last_cause(world):
    for number in range(LIMIT):
        world.fail(ActorFailed(number, "lost"), after_seconds=100.0)
    with pytest.raises(RunFailed, match=r"--max-actor-restarts 3 .*\nnew"):
        world.fail(ActorFailed(0, "new"), after_seconds=100.0)
    assert len(world.recorded) == LIMIT + 1


def test_restarts_that_come_to_nothing_end_it_however_long_each_takes(world):
    world.fail(after_seconds=1.0)
    for _ in range(LIMIT):
        world.fail(after_seconds=700.0, after_steps=FEW_STEPS - 1)
        world.fail(ActorFailed(1, "hung", hung=True), after_seconds=700.0, after_steps=FEW_STEPS)
    with pytest.raises(RunFailed, match="100 steps"):
        world.fail(after_seconds=700.0, after_steps=0)
    assert world.restarted.count(1) == LIMIT


def test_one_good_life_forgives_the_bad_ones_before(world):
    for _ in range(3):
        world.fail(after_seconds=700.0)
        for _ in range(LIMIT):
            world.fail(after_seconds=700.0, after_steps=0)


def test_a_machine_that_can_start_no_process_ends_the_run_in_order(world):
    def refuse(_actor):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    world.restart_actor = refuse
    with pytest.raises(RunFailed, match=r"actor 0 .* unavailable"):
        world.fail()


def test_a_broken_contract_ends_the_run_at_the_start_only(world):
    with pytest.raises(EnvSetupError, match=f"^{BREACH.text}$"):
        world.fail(BREACH, after_steps=WORKED_STEPS - 1)
    world.fail(BREACH, after_steps=1)
    assert (world.restarted, world.shown) == ([0], [BREACH.text])


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_before_the_first_step_a_kill_from_outside_is_no_fault_of_the_environment(world, how):
    world.fail(ActorFailed(0, "gone", **{how: True}), after_steps=0)
    assert world.restarted == [0]


def test_before_the_first_step_any_other_end_is_the_environments_fault(world):
    text = "actor 0 was killed by SIGSEGV; a server of its own was killed by SIGKILL"
    with pytest.raises(EnvSetupError, match=f"own:env .*\n{text}"):
        world.fail(ActorFailed(0, text), after_steps=0)


def test_an_error_is_shown_whole_once(world):
    world.fail()
    world.fail(after_seconds=700.0)
    assert (world.shown[0], len(world.shown)) == (CRASH.text, 2)
    assert re.search(r"\(2 times\).*: ValueError: lost$", world.shown[1])
    for address in ("0x7f1", "0x8a2"):
        world.fail(ActorFailed(0, f"Segmentation fault\nin thread {address}"), after_seconds=700.0)
    assert re.search(r"\(2 times\).* 0x8a2$", world.shown[-1])


def test_a_long_or_broken_text_can_be_kept_and_shown(world):
    world.fail(ActorFailed(0, "x" * 10 * MAX_ERROR_CHARACTERS + "\udc80 the cause"))
    assert len(world.recorded[0].text) < MAX_ERROR_CHARACTERS + 100
    assert world.recorded[0].text == world.shown[0]
    assert world.shown[0].endswith("? the cause")
