"""Acting and learning agree: the learner's forward reproduces what the sampler stored."""

import numpy as np
import pytest
import torch

from pbt_rl.algos.batch import make_batch
from pbt_rl.algos.update import CurrentSlots, Updater
from pbt_rl.envs.base import ActionSpec
from tests.helpers.fake_actor import ENVS, GAUSSIAN, SCREEN, STEPS, Bench
from tests.helpers.packs import learn, settings


def batch_of(bench: Bench, rollouts: list):
    policies = bench.pack.num_policies
    usable = np.ones((policies, len(rollouts)), np.bool_)
    return make_batch(rollouts, policies, usable, bench.pack.device)


def forward(group, batch):
    """The learner's forward over whole rollouts."""
    span = group.span
    obs = {name: batch.layouts[name].as_seen(x) for name, x in batch.obs(span).items()}
    return group.forward(obs, batch.state[span], batch.first[span, :-1])


def assert_reproduced(bench: Bench, rollouts: list) -> None:
    """Float32 acting one step at a time and learning over T agree to 1e-5: other shapes, other order of sums."""
    batch = batch_of(bench, rollouts)
    for group in bench.pack.groups():
        span = group.span
        with torch.no_grad():
            params, value, _ = forward(group, batch)
        log_prob = bench.distribution.log_prob(params, batch.action[span])
        torch.testing.assert_close(log_prob, batch.log_prob[span], rtol=1e-5, atol=1e-5)
        value = bench.pack.denormalize_value(value, span)
        torch.testing.assert_close(value, batch.value[span, :-1], rtol=1e-5, atol=1e-5)


def shake(bench: Bench) -> None:
    """Move all weights, so that outputs depend on the inputs in earnest (fresh heads hardly do)."""
    generator = torch.Generator().manual_seed(1)
    rows = bench.pack.state["param"]
    rows += torch.randn(rows.shape, generator=generator) * 0.1
    bench.pack.state["return_square"] += 3.0
    bench.pack.publish(tuple(range(bench.pack.num_policies)))


CASES = {
    "vector": {},
    "gru": {"core": "gru"},
    "lstm": {"core": "lstm"},
    "frames": {"obs": SCREEN, "core": "gru"},
    "gaussian": {"action": GAUSSIAN},
    "hybrid": {"action": ActionSpec((3, 2), (-1.0,), (1.0,)), "core": "gru"},
    "multi-discrete": {"action": ActionSpec(nvec=(3, 2, 4)), "core": "lstm"},
}


@pytest.mark.parametrize("on_policy", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("case", CASES)
def test_learning_reproduces_what_acting_computed(case, packing, on_policy):
    with Bench(packing=packing, on_policy=on_policy, spare=2, **CASES[case]) as bench:
        shake(bench)
        first, second = bench.take(2), None
        assert_reproduced(bench, first)
        for rollout in first:
            bench.shared.free.append(rollout)
        bench.sampler.resume_finished()
        second = bench.take(2)
        assert any(r.first[1:].any() for r in second), "episodes began in the middle"
        assert_reproduced(bench, second)


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("use_vtrace", [False, True])
def test_without_lag_the_ratio_is_one(core, use_vtrace):
    with Bench(core=core) as bench:
        shake(bench)
        how = settings(epochs=1, use_vtrace=use_vtrace, distribution=bench.distribution)
        for stats in learn(bench.pack, batch_of(bench, bench.take(2)), how):
            assert stats.values["kl"].abs().max() < 1e-6
            assert stats.values["clip_fraction"].max() == 0


def test_the_last_value_is_that_of_the_observation_after_the_rollout():
    with Bench(on_policy=False, spare=4) as bench:
        shake(bench)
        for rollout in bench.take(4):
            obs = rollout.obs["obs"][STEPS].view(2, ENVS, 4)
            nothing, first = torch.zeros(2, ENVS, 0), torch.zeros(2, ENVS, dtype=torch.bool)
            _, value, _ = bench.pack.act({"obs": obs}, nothing, first)
            torch.testing.assert_close(rollout.value[STEPS].view(2, ENVS), value, rtol=1e-5, atol=1e-5)
            assert not torch.allclose(rollout.value[STEPS], rollout.value[STEPS - 1])


KINDS = {
    "vectors": {},
    "normalised": {"normalize_obs": True},
    "stacked frames": {"obs": SCREEN},
    "memory": {"core": "gru"},
    "frames and memory": {"obs": SCREEN, "core": "lstm"},
}


@pytest.mark.parametrize("use_vtrace", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_value_of_a_batch_is_of_the_present_weights_as_are_the_values_beside_it(kind, use_vtrace):
    with Bench(on_policy=False, spare=8, **KINDS[kind]) as bench:
        shake(bench)
        how = {"proximal": not use_vtrace, "use_vtrace": use_vtrace, "off_policy": True, "epochs": 1}
        how = settings(distribution=bench.distribution, **how)
        for _ in range(3):
            batch, before = batch_of(bench, rollouts := bench.take(2)), []
            updater = Updater(bench.pack, how, CurrentSlots(2, bench.pack.device))
            updater._layouts = batch.layouts
            for group in bench.pack.groups():
                if kind != "normalised":  # whose statistics move with every batch
                    found = updater._samples(group, batch).last_value
                    torch.testing.assert_close(found, batch.value[group.span, -1], rtol=1e-4, atol=1e-4)
                before.append(batch.value[group.span, -1])
            shake(bench)  # as if other batches had been learned from
            for group, old in zip(bench.pack.groups(), before, strict=True):
                found = updater._samples(group, batch).last_value
                assert not torch.allclose(found, old, rtol=1e-2, atol=1e-2)
            bench.shared.free.extend(rollouts)


def test_episodes_name_the_environment_of_their_member():
    with Bench(vector_envs=2, spare=4) as bench:
        bench.shared.pack.slot_members[0].generation_of[0] = 0
        bench.shared.pack.slot_members[1].generation_of[0] = 0
        bench.take(2)
        bench.sampler.resume_finished()
        bench.take(2)
        seen = {(e.member, e.environment): int(e.objective) for e in bench.shared.sampling.episodes}
        assert {environment for _, environment in seen} == set(range(2 * ENVS))
        assert all(row == member * ENVS + environment % ENVS for (member, environment), row in seen.items())


def test_bf16_acting_and_learning_agree_to_its_precision():
    with Bench(dtype=torch.bfloat16, core="gru") as bench:
        batch = batch_of(bench, bench.take(2))
        for group in bench.pack.groups():
            with torch.no_grad():
                params, _, _ = forward(group, batch)
            log_prob = bench.distribution.log_prob(params, batch.action[group.span])
            torch.testing.assert_close(log_prob, batch.log_prob[group.span], rtol=0, atol=0.02)


@pytest.mark.parametrize("on_policy", [True, False], ids=["sync", "async"])
def test_nothing_is_lost_repeated_or_misplaced(on_policy):
    with Bench(on_policy=on_policy, spare=20) as bench:
        rollouts = []
        for _ in range(4):
            rollouts += bench.take(2)
            bench.sampler.resume_finished() if on_policy else None
        for vector_env, mine in bench.of_vector_envs(rollouts).items():
            actor = bench.actors[vector_env]
            for number, r in enumerate(mine):
                begin = number * STEPS
                obs = r.obs["obs"].numpy()
                np.testing.assert_array_equal(
                    obs[:, :, 0], np.tile(vector_env * 100 + np.arange(r.rows), (STEPS + 1, 1))
                )
                np.testing.assert_array_equal(obs[:, 0, 1], begin + np.arange(STEPS + 1))
                expected = np.where(r.first[1:], 0, obs[1:, :, 1])
                np.testing.assert_array_equal(r.reward, expected)
                ended = r.terminated | r.truncated
                np.testing.assert_array_equal(ended[:-1], r.first[2:], err_msg="a reset follows each end")
                taken = np.stack(actor.actions[begin : begin + STEPS])
                np.testing.assert_array_equal(r.action.numpy()[: len(taken)], taken)


def test_vector_envs_served_together_give_the_network_the_stored_images_channels_last():
    """Joined views of images would be laid out anew, and turned back by the network, at every step."""
    with Bench(vector_envs=3, obs=SCREEN) as bench:
        seen = []
        act = bench.pack.act
        bench.pack.act = lambda obs, *rest: seen.append(obs) or act(obs, *rest)
        for _ in range(4):
            t = bench.sampler.vector_envs[0].t
            for actor in bench.actors:
                actor.advance()
            bench.sampler.run_inference()
            screen = seen.pop()["screen"]
            assert screen.stride(-3) == 1, "the four frames of a pixel lie side by side"
            newest = [u.rollout.obs["screen"][3 + t].view(2, ENVS, 36, 36) for u in bench.sampler.vector_envs]
            assert torch.equal(screen[:, :, -1], torch.cat(newest, 1))


def test_continuous_actions_are_clipped_for_the_environment_only():
    with Bench(action=GAUSSIAN) as bench:
        (rollout,) = bench.take(2)[:1]
        vector_env = int(rollout.obs["obs"][0, 0, 0]) // 100
        given = np.stack(bench.actors[vector_env].actions[:STEPS])
        drawn = rollout.action.numpy()
        assert (np.abs(drawn) > 0.5).any()
        np.testing.assert_array_equal(given, np.clip(drawn, GAUSSIAN.low, GAUSSIAN.high).astype(np.float32))


def test_vector_envs_served_together_get_the_actions_of_their_own_rows():
    # Policy p always draws action p: whatever else gets mixed up shows.
    with Bench(policies=3, vector_envs=3) as bench:
        for p in range(3):
            bias = next(s for s in bench.pack.weights.layout.heads if s.name == "policy.bias")
            bias.view(bench.pack.state["param"])[p, p] = 1e4
        bench.pack.publish((0, 1, 2))
        for rollout in bench.take(3):
            np.testing.assert_array_equal(
                rollout.action[:, :, 0].numpy(), np.tile(np.repeat(range(3), ENVS), (STEPS, 1))
            )
        for actor in bench.actors:
            assert all((a[:, 0] == np.repeat(range(3), ENVS)).all() for a in actor.actions)


def test_sync_vector_envs_rest_until_resumed_and_go_on_with_new_weights():
    with Bench(core="gru") as bench:
        shake(bench)
        rollouts = bench.take(2)
        for _ in range(5):
            assert not any(actor.advance() for actor in bench.actors), "no actions were given"
            assert not bench.sampler.run_inference()
        last_values = [r.value[-1].clone() for r in rollouts]
        bench.pack.state["param"].mul_(0.5)
        bench.pack.publish((0, 1))
        for r in rollouts:
            bench.shared.free.append(r)
        bench.sampler.resume_finished()
        for vector_env in bench.sampler.vector_envs:
            assert vector_env.t == 1
            assert not any(torch.equal(vector_env.rollout.value[0], v) for v in last_values)
        assert_reproduced(bench, bench.take(2))


def test_async_vector_envs_wait_for_a_free_buffer_and_lose_nothing():
    with Bench(on_policy=False, spare=1) as bench:
        bench.fill(1)
        for _ in range(3 * STEPS):
            for actor in bench.actors:
                actor.advance()
            bench.sampler.run_inference()
        assert len(bench.shared.full) == 1
        assert all(vector_env.t == STEPS for vector_env in bench.sampler.vector_envs if vector_env.has_step)
        rollouts = [bench.shared.full.popleft()]
        seen = {int(rollouts[0].obs["obs"][0, 0, 0]) // 100}
        for _ in range(3):
            bench.shared.free.append(rollouts[-1])
            begin = rollouts[-1].obs["obs"][0, 0, 1]
            rollouts += bench.take(1)
            vector_env = int(rollouts[-1].obs["obs"][0, 0, 0]) // 100
            seen.add(vector_env)
            assert rollouts[-1].obs["obs"][0, 0, 1] % STEPS == 0 == begin % STEPS
        assert seen == {0, 1}


@pytest.mark.parametrize("on_policy", [True, False], ids=["sync", "async"])
def test_a_replaced_policy_begins_with_zeroed_state_and_the_others_keep_theirs(on_policy):
    with Bench(core="gru", on_policy=on_policy, spare=4) as bench:
        shake(bench)
        old = bench.take(2)
        # as the trainer replaces policy 1
        bench.pack.copy_member(0, 1)
        bench.shared.note_exchanged_weights(1)
        bench.sampler.resume_finished()
        new = []
        while len(new) < 2:
            (rollout,) = bench.take(1)
            if rollout.lineage_version.tolist() == [0, 1]:
                new.append(rollout)
            else:
                bench.shared.free.append(rollout)
        assert all(r.lineage_version.tolist() == [0, 0] for r in old)
        kept = slice(0, ENVS)
        for r in new:
            begun = ~torch.from_numpy(r.first[0])
            assert (r.state[kept][begun[kept]] != 0).any()
        assert_reproduced(bench, new)
        if on_policy:
            assert all((r.state[ENVS:] == 0).all() for r in new)


def test_each_step_records_the_updates_of_the_weights_that_acted():
    with Bench() as bench:
        bench.shared.pack.weights_version[:] = [3, 5]
        rollouts = bench.take(2)
        assert all((r.weights_version == [3, 5]).all() for r in rollouts)


def test_steps_and_episodes_are_counted_for_their_members():
    with Bench(policies=2, members=(4, 7)) as bench:
        bench.actors[0].shaping_version = 6
        for slot_member in bench.shared.pack.slot_members:
            slot_member.generation_of[6] = 4
        bench.shared.pack.slot_members[1].evaluations.add(6)
        rollouts = bench.take(2)
        counted = np.zeros(2, np.int64)
        ends = 0
        for r in rollouts:
            counted += (~r.first[1:]).reshape(STEPS, 2, ENVS).sum((0, 2))
            ends += int((r.terminated | r.truncated).sum())
        assert bench.shared.sampling.steps.tolist() == [*counted.tolist(), 0]
        episodes = bench.shared.sampling.episodes
        assert len(episodes) == ends > 0
        for e in episodes:
            row = int(e.objective)
            assert e.member == (4, 7)[row // ENVS]
            assert (e.raw_return, e.shaped_return) == (2 * row, 3 * row)
        assert {e.generation for e in episodes} == {0, 4}
        assert all(e.evaluation == ((e.member, e.generation) == (7, 4)) for e in episodes)


def served(bench: Bench) -> list[int]:
    """Take a turn; return the vector envs that were answered."""
    before = [vector_env.t for vector_env in bench.sampler.vector_envs]
    bench.sampler.run_inference()
    return [
        i
        for i, (t, vector_env) in enumerate(zip(before, bench.sampler.vector_envs, strict=True))
        if vector_env.t != t
    ]


@pytest.mark.parametrize("contended", [False, True])
def test_where_cores_are_rare_a_turn_waits_until_an_actor_has_no_step_left(contended):
    """Vector envs 0 and 1 are of one actor, 2 and 3 of another; those that were not built yet keep nobody waiting."""
    with Bench(
        vector_envs=4, vector_envs_per_actor=2, on_policy=False, spare=4, contended=lambda: contended
    ) as bench:
        vector_envs = bench.actors
        vector_envs[0].advance()
        assert served(bench) == [0]  # vector env 1 is still to be built
        vector_envs[1].advance()
        assert served(bench) == ([] if contended else [1])
        vector_envs[0].advance()
        assert served(bench) == ([0, 1] if contended else [0])
        for vector_env in vector_envs[1:]:
            vector_env.advance()
        assert served(bench) == [1, 2, 3]  # the second actor waits; the first is at work in vector env 0
        vector_envs[1].advance()
        vector_envs[2].advance()
        assert served(bench) == ([] if contended else [1, 2])
        vector_envs[3].advance()
        assert served(bench) == ([1, 2, 3] if contended else [3])


def test_one_actor_alone_is_served_at_once():
    with Bench(
        vector_envs=2, vector_envs_per_actor=2, on_policy=False, spare=4, contended=lambda: True
    ) as bench:
        for vector_env in bench.actors:
            vector_env.advance()
        assert served(bench) == [0, 1]
        bench.actors[0].advance()
        assert served(bench) == [0]


def test_an_actor_whose_vector_env_finds_no_buffer_waits_too():
    """Else nobody would be served until a buffer is free, though others could be."""
    with Bench(
        vector_envs=4, vector_envs_per_actor=2, on_policy=False, spare=1, contended=lambda: True
    ) as bench:
        first, second = bench.sampler.vector_envs[:2], bench.sampler.vector_envs[2:]
        while first[0].t < STEPS:
            for vector_env in bench.actors[:2]:
                vector_env.advance()
            bench.sampler.run_inference()
        for vector_env in bench.actors:
            vector_env.advance()
        assert served(bench) == [0, 2, 3]  # one buffer: vector env 0 goes on in it, vector env 1 waits
        bench.actors[2].advance()
        assert served(bench) == []  # the first actor is at work
        bench.actors[0].advance()
        assert served(bench) == [0, 2]  # it waits now, for a buffer and for actions
        assert first[1].has_step
        assert second[0].t == 2
