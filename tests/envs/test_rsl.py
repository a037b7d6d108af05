"""An RSL-RL `VecEnv` as rows of tensors, with fake simulators: ends, time-outs, observation groups, reward terms."""

import re
from types import SimpleNamespace

import pytest
import torch

from pbt_rl.envs.lookup import DEFAULTS, EnvOptions, make_simulator
from pbt_rl.envs.simulators import custom_simulators
from pbt_rl.envs.simulators.rsl_rows import VecEnvRows
from pbt_rl.errors import EnvSetupError
from tests.helpers.runs import ROOT, start

ROWS = 4


class Config:
    def __init__(self, func, weight):
        self.func, self.weight, self.params = func, weight, {}


class Manager:
    """Reward manager that omits terms of weight 0, like mjlab's and Isaac Lab's."""

    def __init__(self, **terms):
        self.active_terms, self._term_cfgs = list(terms), [Config(*term) for term in terms.values()]

    def compute(self, env):
        total = torch.zeros(ROWS)
        for config in self._term_cfgs:
            if config.weight != 0:
                total += config.func(env, **config.params) * config.weight * 0.5
        return total


class Fake:
    """Fake `VecEnv` whose rows count their steps. Rows end at step 3; odd rows are truncated."""

    num_envs, num_actions, device, step_dt = ROWS, 2, "cpu", 0.5
    dones, time_outs = torch.long, torch.bool

    def __init__(self, **terms):
        self.steps = torch.zeros(ROWS)
        if terms:
            self.reward_manager = Manager(**terms)

    def get_observations(self):
        return {"policy": self.steps[:, None].repeat(1, 3), "critic": self.steps[:, None].repeat(1, 5) + 7}

    def step(self, action):
        self.steps += 1
        manager = getattr(self, "reward_manager", None)
        reward = torch.ones(ROWS) if manager is None else manager.compute(self)
        ended = self.steps >= 3
        extras = {"log": {"height": ended.float().sum()} if ended.any() else {}}
        if self.time_outs is not None:
            extras["time_outs"] = (ended & (torch.arange(ROWS) % 2 == 1)).to(self.time_outs)
        self.steps = torch.where(ended, 0, self.steps)
        return self.get_observations(), reward, ended.to(self.dones), extras


def stepped(fake, steps=3, weights=None, **options):
    env = VecEnvRows("a:b", fake, **options)
    defaults = torch.tensor([list(env.spec.shaping.values())])
    env.attach(defaults if weights is None else torch.tensor(weights))
    env.reset()
    for _ in range(steps):
        step = env.step(torch.zeros(ROWS, 2))
    return env, step


def speed(env):
    return torch.arange(1.0, ROWS + 1)


def effort(env):
    return torch.full((ROWS,), 3.0)


@pytest.mark.parametrize("dones", [torch.long, torch.float32, torch.bool])
@pytest.mark.parametrize("time_outs", [torch.bool, torch.float32])
def test_ends_and_time_outs_of_any_type(dones, time_outs):
    fake = Fake()
    fake.dones, fake.time_outs = dones, time_outs
    _, step = stepped(fake)
    assert step.terminated.tolist() == [True, False, True, False]
    assert step.truncated.tolist() == [False, True, False, True]
    assert step.terminated.dtype is step.truncated.dtype is torch.bool


def test_what_a_simulator_may_leave_out():
    fake = Fake()
    fake.time_outs = None
    _, step = stepped(fake)
    assert step.terminated.all()
    assert not step.truncated.any()
    fake = Fake()
    fake.get_observations = lambda: fake.steps[:, None]
    env, step = stepped(fake, 1)
    assert (env.spec.critic, [*env.spec.obs], [*step.obs]) == ((), ["obs"], ["obs"])
    _, step = stepped(Fake())
    assert step.stats["height"].tolist() == [4.0] * ROWS


def test_spec_of_groups_and_free_actions():
    env, step = stepped(Fake(), 1)
    assert env.spec.obs["obs"].shape == (3,)
    assert step.obs["obs"].tolist() == [[1.0] * 3] * ROWS
    assert (env.spec.obs["critic"].shape, env.spec.critic) == ((5,), ("critic",))
    assert step.obs["critic"].tolist() == [[8.0] * 5] * ROWS
    assert all(env.spec.action.unbounded)
    assert step.objective is None


def test_weights_are_those_of_the_slot_also_of_a_term_that_was_off():
    env, step = stepped(Fake(speed=(speed, 2.0), effort=(effort, 0.0)), 1, [[2.0, 0.0], [0.0, -1.0]])
    assert env.spec.shaping == {"speed": 2.0, "effort": 0.0}
    assert step.reward.tolist() == [1.0, 2.0, -1.5, -1.5]
    assert step.objective.tolist() == [1.0, 2.0, 3.0, 4.0], (
        "by the weights of the task, whatever the slot's are"
    )


def test_weights_act_at_the_next_step():
    fake = Fake(speed=(speed, 2.0))
    env = VecEnvRows("a:b", fake)
    weights = torch.tensor([[2.0]])
    env.attach(weights)
    env.reset()
    before = env.step(torch.zeros(ROWS, 2)).reward.clone()
    weights.fill_(4.0)
    assert torch.equal(env.step(torch.zeros(ROWS, 2)).reward, 2 * before)


def test_the_objective_can_be_one_term():
    _, step = stepped(Fake(speed=(speed, 2.0), effort=(effort, -1.0)), 1, objective="effort")
    assert step.objective.tolist() == [1.5] * ROWS
    with pytest.raises(EnvSetupError, match=r"'tail' \(--env-option objective\).*speed; .*none"):
        VecEnvRows("a:b", Fake(speed=(speed, 2.0)), "tail")


@pytest.mark.parametrize("terms", [{}, {"speed": (speed, 2.0)}])
def test_the_objective_can_be_a_metric(terms):
    fake = Fake(**terms)
    fake.metrics_manager = SimpleNamespace(active_terms=["height", "fall"], _step_values=torch.rand(ROWS, 2))
    _, step = stepped(fake, 1, objective="fall")
    assert torch.equal(step.objective, fake.metrics_manager._step_values[:, 1])


def test_a_curriculum_that_writes_weights_is_refused():
    fake = Fake(speed=(speed, 2.0))
    env, _ = stepped(fake, 1)
    fake.reward_manager._term_cfgs[0].weight = 0.5
    with pytest.raises(EnvSetupError, match=r"weight .*'speed'"):
        env.step(torch.zeros(ROWS, 2))


def test_functions_with_state_keep_their_methods():
    class Stateful:
        def __call__(self, env):
            return torch.ones(ROWS)

        def reset(self, env_ids=None):
            return "reset"

    fake = Fake(speed=(Stateful(), 2.0))
    stepped(fake, 1)
    assert fake.reward_manager._term_cfgs[0].func.reset() == "reset"
    with pytest.raises(AttributeError):
        fake.reward_manager._term_cfgs[0].func.debug_vis  # noqa: B018


def make_fake(rows, device):
    assert rows == ROWS
    return Fake(speed=(speed, 2.0), effort=(effort, -1.0))


def test_a_factory_may_return_one():
    env = custom_simulators.make_simulator(f"{__name__}:make_fake", ROWS, 0, "cpu", DEFAULTS)
    assert env.spec.shaping == {"speed": 2.0, "effort": -1.0}
    assert env.spec.env_id == f"{__name__}:make_fake"


def test_the_list_of_tasks_needs_no_torch():
    from pbt_rl.envs.simulators.rsl import MJLAB

    pytest.importorskip("mjlab")
    assert "Mjlab-Cartpole-Balance" in MJLAB.names()


@pytest.mark.slow
@pytest.mark.simulators
@pytest.mark.parametrize("task", ["Mjlab-Cartpole-Balance", "Mjlab-Velocity-Flat-Unitree-Go1"])
def test_weights_in_mjlab_against_an_untouched_twin(task):
    """Slots have the task's weights, weights of 0, and doubled weights."""
    pytest.importorskip("mjlab")
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.tasks import registry

    env = make_simulator(f"mjlab/{task}", 6, 7, "cpu", EnvOptions())
    usual = torch.tensor([list(env.spec.shaping.values())])
    env.attach(torch.cat((usual, 0 * usual, 2 * usual)))
    env.reset()
    config = registry.load_env_cfg(task)
    config.scene.num_envs, config.seed = 6, 7
    random = torch.Generator().manual_seed(0)
    actions = [torch.randn(6, env.spec.action.components, generator=random) * 0.3 for _ in range(12)]
    ours = torch.stack([env.step(action).reward.clone() for action in actions])
    twin = ManagerBasedRlEnv(config, device="cpu")
    twin.reset()
    twin.get_observations()
    theirs = torch.stack([twin.step(action)[1].clone() for action in actions])
    assert theirs.abs().sum() > 0
    torch.testing.assert_close(ours[:, :2], theirs[:, :2])
    assert not ours[:, 2:4].any()
    torch.testing.assert_close(ours[:, 4:], 2 * theirs[:, 4:])


@pytest.mark.slow
@pytest.mark.simulators
@pytest.mark.timeout(1500)
def test_a_population_learns_to_balance_in_mjlab(tmp_path):
    """The file and the command of docs/lab/simulators.md, with a smaller budget."""
    pytest.importorskip("mjlab")
    page = (ROOT / "docs/lab/simulators.md").read_text()
    (tmp_path / "balance.py").write_text(re.search(r"```python\n# balance.py\n(.*?)```", page, re.DOTALL)[1])
    words = (
        re.search(r"pbt-rl train (--env balance:make .*?)```", page, re.DOTALL)[1]
        .replace("\\\n", " ")
        .split()
    )
    at = words.index("--train-for-frames")
    words[at + 1] = "100000"
    words[words.index("--name") + 1] = "x"
    run = start(tmp_path, "train", *words, "--no-figures", "--final-episodes=0")
    assert run.wait(1400) == 0, run.err
    objectives = [
        p["objective"] for event in run.events("progress") for p in event["members"] if p["objective"]
    ]
    assert max(objectives) > 70, "it began at 50"
    applied = run.events("applied")
    assert applied
    assert all(event["in_environment"] for event in applied)
