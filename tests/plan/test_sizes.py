"""Sizes on every machine: rollouts are young, batches as asked for, members even, cores busy."""

import itertools
from dataclasses import replace

import pytest

from pbt_rl.config import Config, LearnerConfig
from pbt_rl.plan import Machine, make_plan
from pbt_rl.plan.sizes import (
    AGE_PLANNED,
    BATCHES_PLANNED,
    ENOUGH_ACTORS,
    EVEN,
    FAR_BATCH,
    LEAST_GPU_ROWS,
    LEAST_SPARE_ROWS,
    LEAST_VECTOR_ENV_ROWS,
    share_actors,
)

CPUS = (1, 2, 3, 4, 6, 8, 13, 16, 32, 48, 64, 128)
GPUS = (0, 1, 2, 3, 5, 8)
POLICIES = (1, 2, 3, 4, 5, 8, 9, 12, 17, 31, 40, 64)
MACHINES = list(itertools.product(CPUS, GPUS, POLICIES))
INTEGER = 1.2
"""If every vector env is in the batch, 32 rows of each policy over many vector envs leave few integers to choose
from."""


def config(policies=4, **changes) -> Config:
    names = {"rollout", "batch", "minibatches", "epochs", "max_policy_lag"} & changes.keys()
    learner = {name: changes.pop(name) for name in names}
    return Config("toy/identity", num_policies=policies, learner=LearnerConfig(**learner), **changes)


def oldest_allowed(c: Config) -> int:
    """In optimiser steps; of a batch of every vector env a rollout is one batch old, and up to two wait before it."""
    steps = c.optimizer_steps_of_batch
    return max(min(AGE_PLANNED, c.learner.max_policy_lag // 2, BATCHES_PLANNED * steps), 3 * steps)


def even(values, most=EVEN) -> bool:
    return max(values) <= most * min(values) + 1e-9


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rollout": 64, "batch": 2048, "minibatches": 8, "epochs": 8},
        {"minibatches": 4, "epochs": 4},
        {"rollout": 16, "batch": 512, "slots": 8},
        {"max_policy_lag": 6},
        {"vector_envs_per_actor": 1, "batch": 2048, "max_policy_lag": 35},
        {"algo": "a3c"},
    ],
    ids=str,
)
def test_async_rollouts_are_young_and_members_even(changes):
    for cpus, gpus, policies in MACHINES[:: 5 if changes else 1]:
        c = config(policies, **changes)
        plan = make_plan(c, Machine(cpus, gpus))
        assert plan.rollout_age[1] <= oldest_allowed(c)
        for pack in plan.packs:
            assert pack.actors >= 1
            assert pack.rows >= min(LEAST_VECTOR_ENV_ROWS, plan.sizing.batch_rows)
            if c.algo == "appo":
                assert abs(pack.batch_rows / plan.sizing.batch_rows - 1) <= FAR_BATCH
        assert even([p.actors / len(p.members) for p in plan.packs]), "their rollouts take as long"
        most = INTEGER if oldest_allowed(c) <= 3 * c.optimizer_steps_of_batch else EVEN
        if c.algo == "appo":
            assert even([p.batch_rows for p in plan.packs], most)
        assert even([p.vector_envs * p.envs_per_policy for p in plan.packs], most), "rows of each policy"


def test_rollouts_of_a_batch_of_one_wait_for_each_other_in_sync_mode():
    """Measured on CartPole with four vector envs: 0 to 4 updates, mean 1.9; in serial mode with two: 0 or 1."""
    plan = make_plan(config(2, algo="a3c", mode="sync"), Machine(2, 0))
    assert (plan.rollout_age, plan.packs[0].vector_envs) == ((0, 4), 4)
    assert make_plan(config(2, mode="sync"), Machine(2, 0)).rollout_age == (0, 0)


def test_sync_batches_are_as_asked_for_and_members_even():
    for cpus, gpus, policies in MACHINES:
        plan = make_plan(config(policies, mode="sync"), Machine(cpus, gpus))
        for pack in plan.packs:
            assert pack.actors >= 1
            assert pack.vector_envs_per_batch == pack.vector_envs
            assert abs(pack.batch_rows / plan.sizing.batch_rows - 1) <= 2 * FAR_BATCH
        assert even([p.actors / len(p.members) for p in plan.packs])
        assert even([p.batch_rows for p in plan.packs], INTEGER)


@pytest.mark.parametrize("rollout", [1500, 2048, 4096])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_batch_of_a_rollout_grows_no_more_than_it_must_on_many_cores(mode, rollout):
    """Of every actor's two vector envs each brings a rollout; so batches of 2048 steps were of 262,144 on 128 cores."""
    for cpus in CPUS:
        (pack,) = make_plan(config(4, mode=mode, rollout=rollout, batch=2048), Machine(cpus, 0)).packs
        assert pack.batch_rows <= 2


@pytest.mark.parametrize("envs", [1, 2, 4])
def test_rows_given_by_a_recipe_take_no_more_actors_than_keep_rollouts_young(envs):
    for cpus, gpus, policies in MACHINES[::3]:
        for pack in make_plan(config(policies, envs_per_vector_env=envs), Machine(cpus, gpus)).packs:
            assert pack.envs_per_policy == envs
            assert pack.vector_envs / pack.vector_envs_per_batch + 2 <= BATCHES_PLANNED


def test_this_is_what_small_machines_have_and_all_cores_have_an_actor_beside_a_gpu():
    """Numbers in docs/lab/speed.md were measured with these."""
    for policies, envs, rollouts in ((1, 32, 1), (2, 16, 2), (4, 8, 4), (8, 8, 4), (40, 8, 4)):
        (pack,) = make_plan(config(policies), Machine(2, 0)).packs
        assert (pack.actors, pack.envs_per_policy, pack.vector_envs_per_batch) == (2, envs, rollouts)
    for cpus, gpus, policies in ((16, 1, 8), (64, 8, 8), (64, 8, 40), (128, 8, 64)):
        assert make_plan(config(policies), Machine(cpus, gpus)).actors == cpus
    assert make_plan(config(1), Machine(16, 1)).actors == 15, "small vector envs leave their learner a core"
    assert [p.actors for p in make_plan(config(12), Machine(60, 8)).packs] == [10] * 4 + [5] * 4


def planned_beside(cpus, gpus, policies, returns, batch=1024):
    learner = LearnerConfig(returns=returns, batch=batch)
    c = Config("toy/identity", num_policies=policies, learner=learner, devices="auto")
    return make_plan(c, Machine(cpus, gpus))


@pytest.mark.parametrize("returns", ["gae", "auto"])
def test_vector_envs_beside_a_gpu_are_large_or_their_learner_has_a_core_or_a_larger_batch_is_named(returns):
    for cpus, gpus, policies in itertools.product((4, 8, 12, 16, 32, 64, 128), (1, 2, 8), (1, 2, 4, 8, 40)):
        if cpus < gpus:
            continue
        plan = planned_beside(cpus, gpus, policies, returns)
        rows, case = min(pack.rows for pack in plan.packs), (cpus, gpus, policies)
        cores_of_policy = cpus / policies
        if cores_of_policy <= 8:
            assert rows >= LEAST_GPU_ROWS, case
        elif cores_of_policy <= 16:
            assert rows >= LEAST_SPARE_ROWS, case
        if cores_of_policy <= 16:
            assert plan.actors >= ENOUGH_ACTORS * cpus, case
        if rows < LEAST_GPU_ROWS:
            assert plan.actors <= max(cpus - len(plan.packs), 2 * len(plan.packs)), case


@pytest.mark.parametrize(("cpus", "gpus"), [(8, 0), (64, 0), (16, 1)])
def test_a_plan_whose_rollouts_are_old_is_seen(cpus, gpus):
    c = config(1, minibatches=8, epochs=8, rollout=64, batch=2048)
    plan = make_plan(c, Machine(cpus, gpus))
    old = replace(plan, packs=tuple(replace(pack, vector_envs_per_batch=1) for pack in plan.packs))
    assert plan.rollout_age[1] <= oldest_allowed(c) < old.rollout_age[1]
    assert make_plan(replace(c, mode="sync"), Machine(cpus, gpus)).rollout_age == (0, 0)


def test_actors_are_shared_in_proportion():
    assert share_actors(9, [2, 1]) == [6, 3]
    assert share_actors(3, [5, 5, 1]) == [1, 1, 1]
    assert share_actors(15, [2, 2, 1, 1]) == [5, 5, 3, 2]
