"""`pbt-rl export --format rsl_rl`: its runner loads the member, which acts the same there, with the schedule found."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pbt_rl.config import Config, LearnerConfig, ModelConfig
from pbt_rl.config.command import parse_train
from pbt_rl.errors import ConfigError
from pbt_rl.play.export.export_member import export_member
from pbt_rl.play.policy import load_policy
from pbt_rl.record.history import read_run
from pbt_rl.record.saved import Source
from pbt_rl.run.train import train
from tests.helpers.saved import saved_run

ROWS = 8
WORDS = (
    "env=tensors/pendulum mode=serial num-policies=2 learner.rollout=8 learner.epochs=1 learner.minibatches=1"
    " final-episodes=0 model.hidden=16 model.activation=elu train-for-frames=1500 pbt.start-frames=400"
    " pbt.period-frames=400 pbt.min-episodes=1 pbt.replace-gap=0 learner.normalize-observations=yes"
    " learner.normalize-returns=yes learner.precision=float32"
)
STDS = ("--model.initial-std", "0.7", "0.3")
OPTIONS = dict(word.split("=") for word in WORDS.split()) | {"rows": ROWS, "env-option": "limit=20"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("rsl_rl")
    words = [f"--{name}={value}" for name, value in (OPTIONS | {"out": out, "name": "x"}).items()]
    assert train(parse_train([*words, *STDS, "--no-figures"])) == 0
    return out / "x"


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    paths = export_member(Source(run), "rsl_rl", out, episodes=0, trust=True)
    assert [path.name for path in paths] == ["policy_rsl_rl.pt", "policy_rsl_rl.json", "README.md"]
    return torch.load(paths[0], weights_only=True), json.loads(paths[1].read_text()), paths


def observations(rows=64):
    angle = torch.linspace(-3, 3, rows)
    return torch.stack((angle.cos(), angle.sin(), torch.linspace(-8, 8, rows)), 1)


def by_hand(state, obs):
    """Compute RSL-RL's `MLPModel` of a state dict: its normaliser, then layers with ELU between them."""
    x = (obs - state["obs_normalizer._mean"]) / (state["obs_normalizer._std"] + 0.01)
    layers = sorted({int(name.split(".")[1]) for name in state if name.startswith("mlp.")})
    for number in layers:
        x = x @ state[f"mlp.{number}.weight"].T + state[f"mlp.{number}.bias"]
        x = torch.nn.functional.elu(x) if number != layers[-1] else x
    return x


def test_the_layers_give_the_members_actions_stds_and_values(run, exported):
    state, _, _ = exported
    policy, obs = load_policy(run, greedy=True, trust=True), observations()
    action, _ = policy(obs.numpy())
    mean = by_hand(state["actor_state_dict"], obs)
    np.testing.assert_allclose(mean.clamp(-2, 2).numpy(), action, atol=1e-6)
    first = torch.zeros(1, len(obs), dtype=torch.bool)
    params, value, _ = policy._pack.act({"obs": obs[None]}, torch.zeros(1, len(obs), 0), first)
    std = state["actor_state_dict"]["distribution.log_std_param"].exp()
    torch.testing.assert_close(std, 2 * params[0, 0, 1:].exp())
    torch.testing.assert_close(by_hand(state["critic_state_dict"], obs)[:, 0], value[0], rtol=1e-4, atol=1e-4)
    assert state["optimizer_state_dict"]["param_groups"][0]["lr"] > 0


def test_the_schedule_is_that_of_the_weights_descent(run, exported):
    _, found, _ = exported
    summary = json.loads((run / "summary.json").read_text())
    (member,) = (m for m in summary["members"] if m["id"] == summary["best_member"])
    rows = found["schedule"]
    assert rows[0]["steps"] == 0
    assert [row["steps"] for row in rows] == sorted(row["steps"] for row in rows)
    assert rows[-1]["algorithm"]["learning_rate"] == pytest.approx(member["hypers"]["learning_rate"])
    assert rows[-1]["reward_weights"] == pytest.approx(member["shaping"])
    assert len(rows) > 1
    assert found["end"]["steps"] >= rows[-1]["steps"]
    assert found["runner"]["actor"]["hidden_dims"] == [16, 16]
    assert found["runner"]["actor"]["activation"] == "elu"
    founder = read_run(run).lineage.ancestry(member["id"])[0].member
    begins = found["runner"]["actor"]["distribution_cfg"]["init_std"]
    assert begins == pytest.approx(2 * (0.7, 0.3)[founder]), "2: of a range of -2 to 2"


class VecEnv:
    """What the runner asks for, with weights of terms that a schedule sets."""

    num_envs, num_actions, device, max_episode_length, cfg = ROWS, 1, "cpu", 20, {}

    def __init__(self):
        self.terms = {name: SimpleNamespace(weight=0.0) for name in ("angle", "speed", "effort")}
        self.reward_manager = SimpleNamespace(get_term_cfg=self.terms.__getitem__)
        self.unwrapped, self.episode_length_buf = self, torch.zeros(ROWS, dtype=torch.long)

    def get_observations(self):
        from tensordict import TensorDict

        return TensorDict({"policy": observations(ROWS)}, batch_size=[ROWS])

    def step(self, action):
        dones, late = torch.zeros(ROWS, dtype=torch.long), torch.zeros(ROWS, dtype=torch.bool)
        return self.get_observations(), torch.ones(ROWS), dones, {"time_outs": late}


def test_rsl_rls_runner_loads_it_and_acts_the_same(run, exported, monkeypatch):
    pytest.importorskip("rsl_rl", reason="needs pip install rsl-rl-lib")
    from tensordict import TensorDict

    _, _, paths = exported
    monkeypatch.chdir(paths[0].parent)
    snippets = paths[2].read_text().split("```python\n")
    snippet = next(part for part in snippets if "OnPolicyRunner" in part)
    load, train = snippet.split("```")[0].split("# Or train anew")
    env, names = VecEnv(), {}
    exec(load, {"env": env}, names)
    action = names["act"](TensorDict({"policy": observations()}, batch_size=[64]))
    expected, _ = load_policy(run, greedy=True, trust=True)(observations().numpy())
    np.testing.assert_allclose(action.detach().clamp(-2, 2).numpy(), expected, atol=1e-6)
    exec("# " + train, {"env": env}, names)
    found = names["found"]
    assert names["runner"].alg.learning_rate == found["schedule"][-1]["algorithm"]["learning_rate"]
    assert {name: term.weight for name, term in env.terms.items()} == found["schedule"][-1]["reward_weights"]


def test_the_checkpoint_of_rsl_rl_3_has_its_names(exported):
    """Those of its `ActorCritic`, which it saves whole."""
    model = exported[0]["model_state_dict"]
    numbers = [f"{number}.{what}" for number in (0, 2, 4) for what in ("weight", "bias")]
    kept = [*numbers, *(f"obs_normalizer.{what}" for what in ("_mean", "_var", "_std", "count"))]
    names = {f"{who}{'_' if name[0] == 'o' else '.'}{name}" for who in ("actor", "critic") for name in kept}
    assert set(model) == {"log_std", *names}


@pytest.mark.parametrize(
    ("env", "model", "why"),
    [
        ("gym/CartPole-v1", {}, "continuous"),
        ("gym/Pendulum-v1", {"action_bounds": "tanh"}, "tanh"),
        ("gym/Pendulum-v1", {"action_std": "state"}, "std"),
        ("gym/Pendulum-v1", {"core": "gru", "core_size": 8}, "recurrent"),
    ],
)
def test_what_rsl_rl_has_no_form_for_is_refused_by_name(tmp_path, env, model, why):
    model = ModelConfig(encoder="mlp", hidden=8, layers=1, **model)
    learner = LearnerConfig(precision="float32")
    run = saved_run(tmp_path / "run", Config(env=env, num_policies=1, model=model, learner=learner))
    with pytest.raises(ConfigError, match=rf"RSL-RL.*{why}"):
        export_member(Source(run), "rsl_rl", episodes=0)
