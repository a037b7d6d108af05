import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_rl.config import Config, Hypers, LearnerConfig, ModelConfig
from pbt_rl.errors import ConfigError
from pbt_rl.plan import Machine, make_plan, parse_devices


def config(**changes) -> Config:
    return Config("toy/identity", **changes)


def check(plan, c: Config) -> None:
    """Assert what holds for every plan."""
    placed = sorted(m for pack in plan.packs for m in pack.members)
    assert placed == list(range(c.num_policies)), "every member has one place"
    for sizes in ([len(p.members) for p in plan.packs], [p.slots for p in plan.packs]):
        assert max(sizes) - min(sizes) <= 1, "devices share members and slots evenly"
    assert sum(p.slots for p in plan.packs) == min(c.slots or c.num_policies, c.num_policies)
    for pack in plan.packs:
        assert pack.actors >= 1, "every device has an actor"
        assert 1 <= pack.slots <= len(pack.members)
        assert pack.rows == pack.slots * pack.envs_per_policy > 0
        assert pack.vector_envs_per_batch >= 1
        assert pack.threads >= 1
    assert plan.actors == sum(pack.actors for pack in plan.packs)
    assert plan.environments == sum(p.actors * p.vector_envs_per_actor * p.rows for p in plan.packs)


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 64),
    st.integers(0, 8),
    st.integers(1, 32),
    st.sampled_from(["async", "sync", "serial"]),
    st.sampled_from(["appo", "a3c"]),
    st.sampled_from(["auto", "cpu"]),
    st.integers(0, 40),
)
def test_every_machine_and_population_has_a_plan(cpus, gpus, policies, mode, algo, devices, slots):
    c = config(num_policies=policies, mode=mode, algo=algo, devices=devices, slots=slots)
    plan = make_plan(c, Machine(cpus, gpus))
    check(plan, c)
    assert len(plan.packs) == 1 or (mode != "serial" and devices == "auto")


@pytest.mark.parametrize("cpus", [1, 2, 8, 64])
@pytest.mark.parametrize("policies", [2, 3, 5])
def test_two_learners_on_one_cpu(cpus, policies):
    c = config(num_policies=policies, devices="cpu,cpu")
    plan = make_plan(c, Machine(cpus, 0))
    check(plan, c)
    assert [p.device for p in plan.packs] == ["cpu", "cpu"]
    assert plan.packs[0].members[:2] == tuple(range(0, policies, 2))[:2]
    assert sum(p.threads for p in plan.packs) <= max(2, cpus), "they share the cores"


@pytest.mark.parametrize(
    ("cpus", "threads", "parts"), [(1, 1, 1), (2, 2, 2), (8, 6, 6), (16, 8, 8), (64, 48, 8)]
)
def test_a_cnn_on_a_cpu_learns_in_parts(cpus, threads, parts):
    learner = LearnerConfig(epochs=4, minibatches=4)
    (pack,) = make_plan(config(learner=learner), Machine(cpus, 0), pictures=True).packs
    assert (pack.threads, pack.parts) == (threads, parts), "a part has at least 32 of the 256 steps"


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "sync"},
        {"mode": "serial"},
        {"algo": "fun"},
        {"algo": "unreal"},
        {"model": ModelConfig(core="gru"), "learner": LearnerConfig(rollout=128, minibatches=8)},
        {"learner": LearnerConfig(minibatches=32)},
        {"learner": LearnerConfig(packing="vmap")},
        {"model": ModelConfig(encoder="module:factory")},
    ],
)
def test_other_packs_learn_in_one_part(changes):
    (pack,) = make_plan(config(**changes), Machine(8, 0), pictures=True).packs
    assert (pack.threads, pack.parts) == (4, 1)


def test_parts_of_rollouts_are_even():
    learner = LearnerConfig(rollout=16, minibatches=4, batch=1024)
    (pack,) = make_plan(
        config(model=ModelConfig(core="gru"), learner=learner), Machine(16, 0), pictures=True
    ).packs
    assert (pack.batch_rows // 4, pack.threads, pack.parts) == (16, 8, 8), "two rollouts in each of 8 parts"


def test_auto_uses_all_gpus_but_no_more_than_members():
    for policies, gpus, devices in ((8, 3, "cuda:0 cuda:1 cuda:2"), (2, 3, "cuda:0 cuda:1"), (2, 0, "cpu")):
        plan = make_plan(config(num_policies=policies), Machine(16, gpus))
        assert [pack.device for pack in plan.packs] == devices.split()


@pytest.mark.parametrize(
    ("text", "gpus", "devices"),
    [
        ("cuda", 2, ["cuda:0"]),
        ("cuda:1, cpu", 2, ["cuda:1", "cpu"]),
        ("cuda:,cuda:01,cpu:", 2, ["cuda:0", "cuda:1", "cpu"]),
        ("cpu,cpu", 8, ["cpu", "cpu"]),
    ],
)
def test_devices_by_name(text, gpus, devices):
    assert parse_devices(text, Machine(4, gpus)) == devices


@pytest.mark.parametrize(
    "text", ["cuda:2", "cuda:0,cuda:7", "tpu", "cuda:x", "cuda:\u00b2", "cuda:-1", "cpu:0", "", "cpu,", "mps"]
)
def test_a_device_that_is_not_there_is_refused_with_what_is(text):
    with pytest.raises(ConfigError, match="--devices") as error:
        parse_devices(text, Machine(4, 2))
    assert "cpu, cuda:0, cuda:1" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": "cpu,cpu,cpu", "num_policies": 9, "slots": 2}, "3 devices .* 2 slots"),
        ({"devices": "cpu,cuda:0", "mode": "serial"}, "--mode serial"),
        ({"learner": LearnerConfig(minibatches=999, returns="vtrace")}, "--learner.minibatches 999"),
    ],
)
def test_plans_that_cannot_be_are_refused_with_a_remedy(changes, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(config(**changes), Machine(4, 1))


STEPS = {"rollout": 2048, "batch": 2048, "minibatches": 32}
"""Of PPO as it is often set elsewhere: one long rollout, and minibatches of its steps."""


@pytest.mark.parametrize("changes", [{"mode": "sync"}, {"mode": "async", "returns": "gae"}])
def test_a_batch_of_single_steps_has_as_many_parts_as_steps(changes):
    returns = changes.pop("returns", "auto")
    c = config(num_policies=1, learner=LearnerConfig(**STEPS, returns=returns), **changes)
    check(make_plan(c, Machine(2, 0)), c)
    many = LearnerConfig(**STEPS | {"minibatches": 5000}, returns=returns)
    with pytest.raises(ConfigError, match=r"minibatches 5000 .* (2048|4096) steps"):
        make_plan(config(num_policies=1, learner=many, **changes), Machine(2, 0))


@pytest.mark.parametrize(
    "changes", [{"returns": "vtrace"}, {"mode": "sync", "model": ModelConfig(core="lstm")}]
)
def test_where_whole_rollouts_stay_together_a_batch_has_as_many_parts_as_rollouts(changes):
    learner = LearnerConfig(**STEPS, returns=changes.pop("returns", "auto"))
    with pytest.raises(ConfigError, match=r"minibatches 32 .* [12] rollouts"):
        make_plan(config(num_policies=1, learner=learner, **changes), Machine(2, 0))


def test_the_users_numbers_are_used_and_rows_fill_environments_of_several_agents():
    c = config(
        num_policies=3,
        actors=5,
        vector_envs_per_actor=3,
        envs_per_vector_env=2,
        learner=LearnerConfig(threads=7),
    )
    (pack,) = make_plan(c, Machine(64, 0)).packs
    assert (pack.actors, pack.vector_envs_per_actor, pack.envs_per_policy, pack.threads) == (5, 3, 2, 7)
    (pack,) = make_plan(config(num_policies=3), Machine(4, 0), agents=5).packs
    assert pack.envs_per_policy % 5 == 0
    (pack,) = make_plan(config(num_policies=4, envs_per_vector_env=3), Machine(4, 0), agents=6).packs
    assert pack.rows == 12, "members share the agents of an environment"


@pytest.mark.parametrize("mode", ["async", "sync", "serial"])
@pytest.mark.parametrize("cpus", [2, 8])
def test_a_batch_is_about_what_was_asked_for(mode, cpus):
    learner = LearnerConfig(rollout=16, batch=2048)
    c = config(num_policies=4, mode=mode, learner=learner, hypers=Hypers(unroll=16))
    (pack,) = make_plan(c, Machine(cpus, 0)).packs
    steps = pack.vector_envs_per_batch * pack.envs_per_policy * learner.rollout
    assert steps <= 1.5 * learner.batch
    if mode != "async":
        assert pack.vector_envs_per_batch == pack.vector_envs, (
            "sync: every vector env rests until the batch is learned from"
        )
        assert steps >= learner.batch / 1.5


@pytest.mark.parametrize("minibatches", [1, 16])
def test_a3c_learns_from_every_vector_env_alone_unless_that_makes_rollouts_too_old(minibatches):
    c = config(algo="a3c", learner=LearnerConfig(minibatches=minibatches))
    for cpus, rollouts in ((4, 1), (8, 1), (32, 4)):
        (pack,) = make_plan(c, Machine(cpus, 0)).packs
        assert (pack.vector_envs, pack.vector_envs_per_batch) == (2 * cpus // 2, rollouts)
        assert pack.envs_per_policy == 8, "few rows, for many updates"
    for cpus, rollouts in ((4, 1), (32, 32)):
        (pack,) = make_plan(config(algo="a3c", mode="sync"), Machine(cpus, 0)).packs
        assert pack.vector_envs_per_batch == rollouts, "one, or all vector envs that rest"
