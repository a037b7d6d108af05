"""What an update does to each policy.

Packed and alone agree to rtol 1e-4, atol 2e-6 on float32 parameters after several updates (stacked kernels sum
in another order), and to the bit where the pack is a loop. In bf16 the stacked kernels may round an activation
the other way, and Adam moves a weight by up to its learning rate whatever the size of its gradient: there the
tolerance is two learning rates on every weight and a tenth of one on their mean.
"""

from dataclasses import replace

import pytest
import torch

from pbt_rl.algos.update import KL_STEP, CurrentSlots, Updater, unroll_begins
from tests.helpers.packs import (
    CPU,
    ENVS,
    FRAMES,
    GAUSSIAN,
    HYBRID,
    MULTI_DISCRETE,
    TANH,
    VECTOR,
    batch_of,
    learn,
    make_pack,
    make_rollouts,
    same_bits,
    settings,
    state_of,
    update,
)
from tests.helpers.packs import HYPERS as H

BATCHES = 3
DIFFERENT = [
    H,
    H
    | {
        "learning_rate": 1e-3,
        "clip_ratio": 0.3,
        "entropy_coef": 0.1,
        "gamma": 0.8,
        "adam_beta1": 0.5,
        "unroll": 3.0,
    },
    H
    | {
        "max_grad_norm": 0.01,
        "gae_lambda": 0.5,
        "adam_beta2": 0.9,
        "kl_coef": 0.5,
        "rmsprop_alpha": 0.8,
        "vtrace_rho": 0.7,
        "unroll": 5.0,
    },
]


def train(pack, policies, s, *, batches=BATCHES, layout=VECTOR, **options):
    """Several updates of a pack; slot i meets the data of policy `policies[i]`."""
    stats = []
    for seed in range(batches):
        rollouts = make_rollouts(
            policies, layout=layout, distribution=s.distribution, state_size=pack.state_size, seed=seed
        )
        stats += learn(pack, batch_of(rollouts, len(policies)), s, seed=seed, **options)
    return stats


def alone_of(pack, p, hypers, **options):
    """A pack of one that begins as policy p of a pack."""
    alone = make_pack([hypers], **options)
    alone.import_member(0, pack.export_member(p))
    return alone


CASES = {
    "appo gae": ({}, {}),
    "appo vtrace": ({"use_vtrace": True}, {}),
    "a3c": ({"algo": "a3c", "epochs": 1}, {"algo": "a3c"}),
    "gru": ({"use_vtrace": True}, {"core": "gru"}),
    "lstm": ({}, {"core": "lstm"}),
    "multi-discrete": ({"distribution": MULTI_DISCRETE}, {"distribution": MULTI_DISCRETE}),
    "gaussian": ({"distribution": GAUSSIAN, "use_vtrace": True}, {"distribution": GAUSSIAN}),
    "hybrid": ({"distribution": HYBRID}, {"distribution": HYBRID, "core": "gru"}),
    "tanh of the state": ({"distribution": TANH}, {"distribution": TANH, "model": {"action_std": "state"}}),
    "two layers": ({"use_vtrace": True}, {"core": "gru", "model": {"core_layers": 2}}),
    "separate critic": ({}, {"core": "lstm", "model": {"critic": "separate"}}),
    "frames": ({}, {"layout": FRAMES}),
    "normalised observations": ({"lr_schedule_kl": 0.01}, {"normalize_obs": True}),
    "proximal": ({"proximal": True}, {"normalize_obs": True}),
    "proximal vtrace": ({"proximal": True, "use_vtrace": True}, {"core": "gru"}),
    "raw returns": ({"normalize_advantage": False}, {"normalize_returns": False}),
    "a3c lstm gaussian": (
        {"algo": "a3c", "epochs": 1, "distribution": GAUSSIAN},
        {"algo": "a3c", "core": "lstm", "distribution": GAUSSIAN},
    ),
}


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("case", CASES)
def test_packed_policies_learn_as_each_would_alone(case, packing):
    changes, options = CASES[case]
    s = settings(**changes)
    packed = make_pack(DIFFERENT, packing=packing, **options)
    start = packed.state["param"].clone()
    alone = [alone_of(packed, p, h, **options) for p, h in enumerate(DIFFERENT)]
    layout = options.get("layout", VECTOR)
    # A convolution's rounding depends on its batch, and where a gradient is hardly more than that Adam makes a
    # step of it, whose effect grows from step to step.
    batches = 1 if layout is FRAMES else BATCHES
    train(packed, [0, 1, 2], s, layout=layout, batches=batches)
    for p, one in enumerate(alone):
        train(one, [p], s, layout=layout, batches=batches)
        for name, rows in packed.state.items():
            close = {"rtol": 1e-4, "atol": 0.1 * DIFFERENT[p]["learning_rate"] if layout is FRAMES else 2e-6}
            tolerance = {"rtol": 0.0, "atol": 0.0} if packing == "loop" else close
            torch.testing.assert_close(
                rows[p], one.state[name][0], **tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )
        assert (packed.state["param"][p] - start[p]).abs().max() > 1e-4


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize(("core", "differ"), [("none", False), ("gru", True), ("lstm", True)])
def test_the_unroll_truncates_backpropagation_too(core, differ, packing):
    """With gamma 0 no return looks ahead: what is left of the unroll is how far gradients go back."""
    now = H | {"gamma": 0.0}
    pack = make_pack([now | {"unroll": 3.0}, now | {"unroll": 100.0}], packing=packing, core=core)
    pack.import_member(1, pack.export_member(0))
    train(pack, [0, 0], settings(), batches=1)
    assert same_bits(state_of(pack, 0), state_of(pack, 1)) == (not differ)


def test_an_unroll_begins_at_its_multiples():
    begins = unroll_begins(torch.tensor([2.0, 3.0]), torch.zeros(2, 5, 1))
    assert begins[0, :, 0].tolist() == [True, False, True, False, True]
    assert begins[1, :, 0].tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_packed_equals_alone_in_bf16(packing):
    packed = make_pack(DIFFERENT, packing=packing, dtype=torch.bfloat16)
    alone = [alone_of(packed, p, h, dtype=torch.bfloat16) for p, h in enumerate(DIFFERENT)]
    train(packed, [0, 1, 2], settings())
    for p, one in enumerate(alone):
        train(one, [p], settings())
        error = (packed.state["param"][p] - one.state["param"][0]).abs()
        rate = 0.0 if packing == "loop" else DIFFERENT[p]["learning_rate"]
        assert error.max() <= 2 * rate
        assert error.mean() <= 0.1 * rate


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_minibatches_are_whole_columns_in_a_seeded_order(packing):
    s = settings(minibatches=2)
    packs = [make_pack([H, H], packing=packing) for _ in range(3)]
    steps = [train(pack, [0, 1], s, batches=1) for pack in packs[:2]]
    groups = 2 if packing == "loop" else 1
    assert len(steps[0]) == s.epochs * s.minibatches * groups
    assert same_bits(state_of(packs[0], 1), state_of(packs[1], 1))
    train(packs[2], [0, 1], settings())
    assert not same_bits(state_of(packs[0], 1), state_of(packs[2], 1))
    assert packs[0].state["optimizer_steps"].tolist() == [4.0, 4.0]


def acting(algo_changes, name):
    """Whether a hyper acts in this algorithm."""
    by_algo = {
        "appo": {"clip_ratio", "clip_value", "kl_coef", "adam_beta1", "adam_beta2", "gae_lambda"},
        "a3c": {"rmsprop_alpha"},
    }
    common = {"learning_rate", "entropy_coef", "value_coef", "max_grad_norm", "gamma", "unroll"}
    vtrace = {"vtrace_rho", "vtrace_c"} if algo_changes.get("use_vtrace") else set()
    return name in common | by_algo[algo_changes.get("algo", "appo")] | vtrace


CHANGED = {name: value * 0.7 for name, value in H.items()} | {
    "unroll": 3.0,
    "vtrace_c": 0.3,
    "max_grad_norm": 0.05,
    "kl_coef": 0.5,
}


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("changes", [{}, {"use_vtrace": True}, {"algo": "a3c", "epochs": 1}], ids=str)
def test_each_hyper_acts_on_its_policy_only_at_the_next_update(changes, packing):
    s = settings(**changes)
    options = {"packing": packing, "algo": changes.get("algo", "appo")}
    reference = make_pack([H, H], **options)
    train(reference, [0, 1], s, batches=2)
    for name in H:
        pack = make_pack([H, H], **options)
        train(pack, [0, 1], s, batches=1)
        pack.set_hypers(1, H | {name: CHANGED[name]})
        learn(pack, batch_of(make_rollouts([0, 1], seed=1), 2), s, seed=1)
        assert same_bits(state_of(pack, 0), state_of(reference, 0)), name
        differs = not torch.equal(pack.state["param"][1], reference.state["param"][1])
        assert differs == acting(changes, name), name


def test_a_hyper_changed_between_two_steps_acts_in_the_next():
    # The generator pauses whenever a supervisor may edit.
    packs = [make_pack([H]) for _ in range(2)]
    for pack, edited in zip(packs, (False, True), strict=True):
        steps = update(pack, batch_of(make_rollouts([0]), 1), settings())
        rates = [next(steps).values["learning_rate_in_use"].item()]
        if edited:
            pack.set_hypers(0, H | {"learning_rate": 1e-4})
        rates += [s.values["learning_rate_in_use"].item() for s in steps]
        assert rates == pytest.approx([3e-3, 1e-4] if edited else [3e-3, 3e-3])
    assert not torch.equal(packs[0].state["param"], packs[1].state["param"])


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_clip_is_around_the_policy_at_the_begin_of_the_batch(core, packing):
    """The first step of a batch then moves nothing out of its clip, however old the rollouts are."""

    def first_step(**changes):
        pack = make_pack([H, H], packing=packing, core=core, normalize_obs=True)
        old = batch_of(make_rollouts([0, 1], state_size=pack.state_size), 2)
        of_slots = {}
        for step in update(pack, old, settings(**changes)):
            for i, slot in enumerate(step.slots):
                of_slots.setdefault(slot, []).append(step.values["kl"][i].item())
        return of_slots

    for kl in first_step(proximal=True).values():
        assert abs(kl[0]) < 1e-6 < kl[1]
    assert all(kl[0] > 1e-2 for kl in first_step().values())


def test_samples_of_the_present_policy_learn_as_without_a_proximal_one():
    """Where log probabilities and values are those of the present weights, nothing is different."""
    packs = [make_pack([H]) for _ in range(2)]
    fresh = batch_of(make_rollouts([0]), 1)
    begun = Updater(packs[0], settings(proximal=True), CurrentSlots(1, CPU))
    begun._layouts = fresh.layouts
    now = begun._samples(packs[0].groups()[0], fresh)
    value = torch.cat([now.value, fresh.value[:, -1:]], 1)
    fresh = replace(fresh, log_prob=now.proximal, value=value)
    for pack, proximal in zip(packs, (False, True), strict=True):
        learn(pack, fresh, settings(proximal=proximal, minibatches=2))
    torch.testing.assert_close(packs[0].state["param"], packs[1].state["param"], rtol=1e-5, atol=1e-6)


def spoil(rollout, rows, value):
    """Put something else into everything of the invalid steps that learning reads, final observations left."""
    steps = torch.from_numpy(rollout.first[1:]).clone()
    steps[:, [r for r in range(rollout.rows) if r not in rows]] = False
    for name in ("log_prob", "reward"):
        array = getattr(rollout, name)
        array[steps if isinstance(array, torch.Tensor) else steps.numpy()] = value


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("value", [1e6, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "changes",
    [{}, {"use_vtrace": True}, {"proximal": True}, {"algo": "a3c", "epochs": 1}],
    ids=["gae", "vtrace", "proximal", "a3c"],
)
def test_reset_steps_change_nothing_whatever_they_hold(packing, value, changes):
    s = settings(**changes)
    options = {"packing": packing, "algo": changes.get("algo", "appo"), "core": "gru", "normalize_obs": True}
    packs = [make_pack([H, H], **options) for _ in range(2)]
    stats = []
    for pack, spoiled in zip(packs, (False, True), strict=True):
        rollouts = make_rollouts([0, 1], state_size=8)
        if spoiled:
            assert rollouts[0].first[1:].any()
            for rollout in rollouts:
                spoil(rollout, range(rollout.rows), value)
        stats.append(learn(pack, batch_of(rollouts, 2), s))
    for p in range(2):
        assert same_bits(state_of(packs[0], p), state_of(packs[1], p))
    assert packs[0].state["optimizer_steps"].min() == s.epochs
    for one, other in zip(*stats, strict=True):
        assert same_bits(one.values, other.values)


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("value", [1e3, float("nan")])
@pytest.mark.parametrize("changes", [{}, {"use_vtrace": True}, {"proximal": True}], ids=str)
def test_an_outdated_rollout_changes_nothing_whatever_it_holds(packing, value, changes):
    # Rollout 1 is outdated for policy 0 alone: its weights had diverged when it was made.
    packs = [make_pack([H, H], packing=packing, core="lstm", normalize_obs=True) for _ in range(2)]
    for pack, spoiled in zip(packs, (False, True), strict=True):
        rollouts = make_rollouts([0, 1], state_size=16)
        if spoiled:
            rows = slice(0, ENVS)
            for array in (rollouts[1].log_prob, rollouts[1].value, rollouts[1].reward):
                array[:, rows] = value
            rollouts[1].state[rows] = value
        usable = [[True, False], [True, True]]
        learn(pack, batch_of(rollouts, 2, usable), settings(**changes))
    for p in range(2):
        assert same_bits(state_of(packs[0], p), state_of(packs[1], p))
    assert packs[1].state["optimizer_steps"].tolist() == [2.0, 2.0]
    everything = make_pack([H, H], packing=packing, core="lstm", normalize_obs=True)
    learn(everything, batch_of(make_rollouts([0, 1], state_size=16), 2), settings(**changes))
    assert not torch.equal(everything.state["param"][0], packs[0].state["param"][0])


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("algo", ["appo", "a3c"])
def test_a_policy_that_must_not_learn_is_left_untouched(packing, algo):
    # It has momentum from a batch before: without a sample that must not move it either.
    s = settings(algo=algo, lr_schedule_kl=0.01 if algo == "appo" else None)
    pack = make_pack([H, H, H], packing=packing, algo=algo, normalize_obs=True)
    train(pack, [0, 1, 2], s, batches=1)
    before = [state_of(pack, p) for p in range(3)]
    batch = batch_of(make_rollouts([0, 1, 2], seed=4), 3)
    current = CurrentSlots(3, CPU)
    current.drop(1)
    learn(pack, batch, s, current=current)
    assert [same_bits(state_of(pack, p), before[p]) for p in range(3)] == [False, True, False]


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_a_policy_replaced_during_an_update_learns_no_more_from_it(packing):
    pack = make_pack([H, H], packing=packing, normalize_obs=True)
    train(pack, [0, 1], settings(), batches=1)
    current = CurrentSlots(2, CPU)
    batch = batch_of(make_rollouts([0, 1], seed=4), 2)
    steps = update(pack, batch, settings(lr_schedule_kl=1e-9), current=current)
    next(steps)
    pack.copy_member(0, 1)
    current.drop(1)
    donor = state_of(pack, 0)
    for _ in steps:
        pass
    assert same_bits(state_of(pack, 1), donor)
    assert not same_bits(state_of(pack, 0), donor)


@pytest.mark.parametrize("packing", ["loop", "vmap"])
@pytest.mark.parametrize("algo", ["appo", "a3c"])
def test_one_bad_batch_leaves_the_member_untouched_and_the_others_learn(packing, algo):
    s = settings(algo=algo)
    packs = [make_pack([H, H], packing=packing, algo=algo) for _ in range(2)]
    for pack, bad in zip(packs, (False, True), strict=True):
        train(pack, [0, 1], s, batches=1)
        before = state_of(pack, 0)
        rollouts = make_rollouts([0, 1], seed=4)
        if bad:
            rollouts[0].reward[1, 1] = float("inf")
        stats = learn(pack, batch_of(rollouts, 2), s)
        norms = torch.stack([x.values["grad_norm"] for x in stats if 0 in x.slots])[:, 0]
        assert torch.isfinite(norms).all() == (not bad)
        if bad:
            assert same_bits(state_of(pack, 0), before)
    assert same_bits(state_of(packs[0], 1), state_of(packs[1], 1))
    after = train(packs[1], [0, 1], s, batches=1)
    assert all(torch.isfinite(x.values["grad_norm"]).all() for x in after), "and it goes on"


def test_the_schedules_factor_multiplies_each_members_own_rate():
    hypers = [H, H | {"learning_rate": 1e-3}]
    packs = [make_pack(hypers), make_pack([h | {"learning_rate": h["learning_rate"] / 4} for h in hypers])]
    stats = [
        train(pack, [0, 1], settings(), factor=factor)
        for pack, factor in zip(packs, (0.25, 1.0), strict=True)
    ]
    torch.testing.assert_close(packs[0].state["param"], packs[1].state["param"])
    in_use = [s.values["learning_rate_in_use"].item() for s in stats[0][:3]]
    assert in_use == pytest.approx([0.75e-3, 0.75e-3, 0.25e-3])


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_kl_adaptation_composes_with_a_mutated_rate(packing):
    for lr_schedule_kl, factor in ((1e-9, 1 / KL_STEP), (1e9, KL_STEP)):
        pack = make_pack([H, H], packing=packing)
        train(pack, [0, 1], settings(lr_schedule_kl=lr_schedule_kl), batches=2)
        assert pack.state["lr_factor"].tolist() == pytest.approx([factor**2] * 2)
        pack.set_hypers(1, H | {"learning_rate": 1e-4})
        stats = train(pack, [0, 1], settings(), batches=1, factor=0.5)
        rates = torch.cat([s.values["learning_rate_in_use"] for s in stats]).tolist()
        assert sorted(set(rates)) == pytest.approx([1e-4 * factor**2 / 2, 3e-3 * factor**2 / 2])


def test_kl_adaptation_waits_inside_its_band():
    probe = train(make_pack([H]), [0], settings(), batches=1)
    kl = sum(s.values["kl"].item() for s in probe) / len(probe)
    for target, factor in ((kl, 1.0), (kl / 2.1, 1 / KL_STEP), (kl * 2.1, KL_STEP)):
        pack = make_pack([H])
        train(pack, [0], settings(lr_schedule_kl=target), batches=1)
        assert pack.state["lr_factor"].item() == pytest.approx(factor)


def test_kl_adaptation_leaves_out_steps_without_samples():
    def train_half(target):
        pack = make_pack([H])
        batch = batch_of(make_rollouts([0]), 1, [[True, False]])  # three of six minibatches are empty
        half = settings(use_vtrace=True, minibatches=6, epochs=4, lr_schedule_kl=target)
        return pack, [step.values for step in learn(pack, batch, half)]

    kl = [values["kl"].item() for values in train_half(None)[1] if values["grad_norm"] > 0]
    assert len(kl) == 12
    assert train_half(sum(kl) / 12)[0].state["lr_factor"].item() == 1.0, "within its band"


def test_statistics_are_those_of_the_groups_members():
    s = settings()
    for packing, members in (("loop", [(0,), (0,), (1,), (1,)]), ("vmap", [(0, 1), (0, 1)])):
        stats = train(make_pack([H, H], packing=packing), [0, 1], s, batches=1)
        assert [x.slots for x in stats] == members
        assert all(v.shape == (len(x.slots),) for x in stats for v in x.values.values())
        assert all(not v.requires_grad for x in stats for v in x.values.values())


STOPPING = {"epochs": 16}


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_kl_adaptation_counts_the_minibatch_that_ends_a_batch(packing):
    hypers = H | {"learning_rate": 3e-2, "clip_ratio": 1e9}
    stopping = {"target_kl": 0.01, "proximal": True, **STOPPING}

    def adapted(lr_schedule_kl=None):
        pack = make_pack([hypers], packing=packing)
        steps = train(pack, [0], settings(lr_schedule_kl=lr_schedule_kl, **stopping), batches=1)
        return pack.state["lr_factor"].item(), [step.values["kl"].item() for step in steps]

    _, kl = adapted()
    kl = [one for one in kl if one > 0]
    first = 1  # the first minibatch is of the policy at the begin of the batch
    assert len(kl) == 2 < STOPPING["epochs"] - first, "it stops in the midst"
    assert adapted(sum(kl) / (first + len(kl)) / 1.5)[0] == 1.0, "within its band"


@pytest.mark.parametrize("packing", ["loop", "vmap"])
def test_a_batch_ends_for_the_member_that_moves_too_far_alone(packing):
    """Stable-Baselines3's rule, written out: nothing is learned from the first minibatch above 1.5 x the target on."""
    hypers = [H | {"learning_rate": 3e-2, "clip_ratio": 1e9}, H | {"learning_rate": 1e-5}]
    pack = make_pack(hypers, packing=packing)
    alone = [alone_of(pack, p, h) for p, h in enumerate(hypers)]
    free = [train(alone_of(pack, p, h), [0], settings(**STOPPING), batches=1) for p, h in enumerate(hypers)]
    fast, slow = ([step.values["kl"].item() for step in steps] for steps in free)
    target = max(*fast[:3], *slow)
    number = next(n for n, kl in enumerate(fast) if kl > 1.5 * target)
    assert number < len(fast) - 1, "it does not stop in the midst"

    train(pack, [0, 0], settings(target_kl=target, **STOPPING), batches=1)
    assert pack.state["optimizer_steps"].tolist() == [number, len(slow)]
    steps = train(alone[0], [0], settings(target_kl=target, **STOPPING), batches=1)
    assert len(steps) == number + 1, "on a CPU the rest is not computed"
    train(alone[1], [0], settings(**STOPPING), batches=1)
    for p, one in enumerate(alone):
        for name, rows in pack.state.items():
            torch.testing.assert_close(rows[p], one.state[name][0], rtol=1e-4, atol=1e-5)

    train(pack, [0, 1], settings(target_kl=1e9, **STOPPING), batches=1)
    assert pack.state["optimizer_steps"][0] == number + len(fast), "the next batch begins anew"
