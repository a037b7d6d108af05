"""gymnax/ shares its arrays with torch. Writes by JAX or torch to shared memory do not change any step."""

import subprocess
import sys

import pytest
import torch

from pbt_rl.envs import lookup
from pbt_rl.envs.lookup import DEFAULTS, EnvOptions
from pbt_rl.errors import EnvSetupError
from tests.helpers.runs import train

pytest.importorskip("gymnax")
pytestmark = pytest.mark.simulators
ROWS = 512


def made(name="Pendulum-v1", rows=ROWS, seed=3, **keywords):
    env = lookup.make_simulator(f"gymnax/{name}", rows, seed, "cpu", EnvOptions(keywords=keywords))
    env.attach(torch.ones(1, 0))
    return env, env.reset()


def actions(steps=20, rows=ROWS, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.rand(rows, 1, generator=random) * 4 - 2 for _ in range(steps)]


def played(change=lambda action: action, after=lambda action, step: None):
    """Return observations and rewards of 20 steps. change, after: called before and after each step."""
    env, _ = made()
    seen = []
    for action in actions():
        given = change(action.clone())
        step = env.step(given)
        seen.append((step.obs["obs"].clone(), step.reward.clone()))
        after(given, step)
    return seen


def same(left, right):
    return all(torch.equal(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True))


def test_action_memory_that_is_overwritten_after_the_step_changes_nothing():
    assert same(played(), played(after=lambda action, _: action.fill_(2.0)))


def test_what_is_written_into_an_observation_changes_nothing_that_follows():
    assert same(played(), played(after=lambda _, step: step.obs["obs"].zero_()))


def test_actions_of_any_alignment_and_stride_are_read_right():
    def unaligned(action):
        view = torch.zeros(ROWS + 1, 1)[1:]
        assert view.data_ptr() % 64 != 0
        return view.copy_(action)

    assert same(played(), played(unaligned))
    assert same(played(), played(lambda action: torch.cat((action, action), 1)[:, :1]))


def test_another_action_gives_another_step():
    assert not same(played(), played(lambda action: -action))


def test_a_limit_is_a_truncation_with_the_last_observation_of_the_old_episode():
    env, obs = made(max_steps_in_episode=5)
    for number, action in enumerate(actions(5), 1):
        before, step = obs["obs"].clone(), env.step(action)
        obs = step.obs
        assert step.truncated.all() == (number == 5)
        assert not step.terminated.any()
    angle, turn = torch.atan2(before[:, 1], before[:, 0]), before[:, 2]
    turn = (turn + (15 * angle.sin() + 3 * action[:, 0]) * 0.05).clamp(-8, 8)
    end = torch.stack(((angle + turn * 0.05).cos(), (angle + turn * 0.05).sin(), turn), 1)
    torch.testing.assert_close(step.final_obs["obs"], end, atol=1e-4, rtol=1e-4)
    assert (obs["obs"][:, 2].abs() <= 1).all(), "the new episode's first observation"


def test_a_fall_is_terminal_and_never_both():
    env, _ = made("CartPole-v1", 64)
    over = 0
    for _ in range(60):
        step = env.step(torch.ones(64, 1, dtype=torch.int32))
        assert step.terminated.dtype is torch.bool
        assert not (step.terminated & step.truncated).any()
        over += int(step.terminated.sum())
        gone = step.final_obs["obs"][step.terminated]
        assert (gone[:, 2].abs() > 0.2).all()
    assert over >= 64


def test_equal_seeds_give_equal_rows_and_others_do_not():
    (a, one), (b, two), (_, other) = made(seed=1), made(seed=1), made(seed=2)
    assert torch.equal(one["obs"], two["obs"])
    assert not torch.equal(one["obs"], other["obs"])
    action = actions(1)[0]
    assert torch.equal(a.step(action).reward, b.step(action).reward)


def test_unknown_names_and_options_are_one_line():
    with pytest.raises(EnvSetupError, match="gymnax/Pendulum-v9 "):
        lookup.probe("gymnax/Pendulum-v9", DEFAULTS)
    with pytest.raises(EnvSetupError, match=r"limit.*max_steps_in_episode"):
        lookup.probe("gymnax/Pendulum-v1", EnvOptions(keywords={"limit": 3}))


def test_every_name_can_be_described_and_stepped():
    for name in ("Breakout-MinAtar", "Freeway-MinAtar", "Catch-bsuite", "Reacher-misc"):
        spec = lookup.probe(f"gymnax/{name}", DEFAULTS)
        env, obs = made(name, 8)
        assert obs["obs"].shape == (8, *spec.obs["obs"].shape)
        env.step(torch.zeros(8, spec.action.components, dtype=getattr(torch, spec.action.dtype)))


def test_the_list_of_environments_imports_neither_torch_nor_jax():
    program = (
        "import sys; from pbt_rl.envs.lookup import FAMILIES; assert 'gymnax' in FAMILIES;"
        "[family.names() for family in FAMILIES.values()];"
        "print(sorted({'torch', 'jax'} & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_a_population_learns_cart_pole(tmp_path):
    """A whole run, with the probe in a fork, JAX's compilation in the learner, and learning."""
    options = ("--num-policies=4", "--rows=64", "--train-for-frames=50000", "--pbt.start-frames=60000")
    run = train(tmp_path, "gymnax/CartPole-v1", *options)
    assert run.wait() == 0, run.err
    members = run.summary["members"]
    assert min(member["frames"] for member in members) >= 50_000
    assert all(member["episodes"] > 100 for member in members)
    objectives = [member["objective"] for member in members]
    assert min(objectives) > 60, f"a policy that has learned nothing stands for 22 steps:\n{run.out}"


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Breakout-MinAtar"])
def test_a_step_uploads_nothing(name):
    """JAX's transfer guard detects uploads. On a CPU it detects only this direction."""
    import jax

    env, _ = made(name, 4)
    whole = not env.spec.action.low
    action = torch.zeros(4, env.spec.action.components, dtype=torch.int32 if whole else torch.float32)
    env.step(action)
    with jax.transfer_guard("disallow"):
        for _ in range(3):
            env.step(action)
        with pytest.raises(RuntimeError, match="transfer"):
            jax.numpy.add(1.0, jax.numpy.ones(2))
