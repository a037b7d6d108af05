"""One optimiser step of a whole minibatch against a second, slow implementation that shares nothing with the first.

The reference is plain Python and float64: network, returns, normalisers, losses, and gradients by finite differences.
It is written from the papers' equations and the docstrings. The step is taken through `update` by an optimiser whose
step is the gradient itself, so that the difference of the weights is the gradient that `update` computed.
"""

import math

import numpy as np
import pytest
import torch

from pbt_rl.algos.optim import Optimizer
from tests.helpers.packs import HYPERS, K, T, batch_of, learn, make_pack, make_rollouts, settings

RETURN_SQUARE = 9.0
"""Running mean square of returns before the batch: a scale of 3, far from the 1 of a fresh pack."""
H = HYPERS | {
    "learning_rate": 1.0,
    "max_grad_norm": 1e9,
    "unroll": 5.0,
    "vtrace_rho": 1.05,
    "vtrace_c": 0.9,
    "entropy_coef": 0.05,
    "clip_value": 0.1,
    "kl_coef": 0.8,
}


def plain_step(g, _moments, _hypers):
    g.param_GN.sub_((g.learning_rate_G * g.scale_G)[:, None] * g.grad_GN)


PLAIN = Optimizer((), (), plain_step)


class Reference:
    """What a pack of one policy holds before a step, and the step."""

    def __init__(self, pack, rollouts, kind, *, advantage, returns, obs, usable):
        self.kind, self.normalize_advantage = kind, advantage
        self.scale_returns, self.scale_obs = returns, obs
        self.weights = {k: v.double().numpy() for k, v in pack.named_weights(0).items()}
        join = lambda name: np.concatenate([np.asarray(getattr(r, name), np.float64) for r in rollouts], 1)  # noqa: E731
        self.reward, self.log_prob, self.value = join("reward"), join("log_prob"), join("value")
        self.action = np.concatenate([r.action[..., 0].numpy() for r in rollouts], 1)
        self.terminated, self.truncated = join("terminated") > 0, join("truncated") > 0
        usable_rows = np.repeat(usable, rollouts[0].rows)
        self.valid = (join("first")[1:] == 0) & usable_rows
        self.x = np.concatenate([r.obs["obs"].double().numpy() for r in rollouts], 1)[:-1]
        if obs:
            seen = self.x[self.valid]
            mean, var = seen.mean(0), seen.var(0)
            self.x = np.clip((self.x - mean) / np.sqrt(var + 1e-6), -5, 5)
        self.rows = self.reward.shape[1]
        self.scale = math.sqrt(RETURN_SQUARE) if returns else 1.0

    def forward(self, weights):
        """Log probabilities of all actions [T, B, 3] and values in the network's unit [T, B]."""
        w = {name.rsplit(".", 2)[-2] + "." + name.rsplit(".", 1)[-1]: x for name, x in weights.items()}
        hidden = np.tanh(self.x @ w["0.weight"].T + w["0.bias"])
        logits = hidden @ w["policy.weight"].T + w["policy.bias"]
        logits = logits - logits.max(-1, keepdims=True)
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return log_probs, (hidden @ w["value.weight"].T + w["value.bias"])[..., 0]

    def of_actions(self, log_probs):
        """Log probabilities of the actions taken, [T, B]."""
        return np.take_along_axis(log_probs, self.action[..., None], -1)[..., 0]

    def bootstrap(self, value, t, b, ahead=None):
        """The worth of what follows transition t: nothing after a terminal state."""
        return 0.0 if self.terminated[t, b] else (value[t + 1, b] if ahead is None else ahead)

    def goes_on(self, t, b):
        """Whether the sum over later errors reaches beyond transition t."""
        last = (t + 1) % int(H["unroll"]) == 0 or t == T - 1
        return not (last or self.terminated[t, b] or self.truncated[t, b]) and self.valid[t + 1, b]

    def returns(self, value, lam):
        """GAE (Schulman et al. 2016, equation 16): the sum over l of (gamma lambda)^l delta_{t+l}, written out."""
        advantage = np.zeros((T, self.rows))
        for b in range(self.rows):
            for start in range(T):
                t, weight = start, 1.0
                while self.valid[start, b]:
                    follows = self.bootstrap(value, t, b)
                    delta = self.reward[t, b] + H["gamma"] * follows - value[t, b]
                    advantage[start, b] += weight * delta
                    if not self.goes_on(t, b):
                        break
                    t, weight = t + 1, weight * H["gamma"] * lam
        return advantage

    def vtrace(self, value, ratio):
        """v_s of Espeholt et al. (2018), equation 1, and r + gamma v_{s+1} - V(x_s), without its weight rho_s."""
        rho = np.minimum(H["vtrace_rho"], ratio)
        c = H["gae_lambda"] * np.minimum(H["vtrace_c"], ratio)
        target, advantage = value[:-1].copy(), np.zeros((T, self.rows))
        for b in range(self.rows):
            for start in range(T):
                t, weight = start, 1.0
                while self.valid[start, b]:
                    follows = self.bootstrap(value, t, b)
                    error = self.reward[t, b] + H["gamma"] * follows - value[t, b]
                    target[start, b] += weight * rho[t, b] * error
                    if not self.goes_on(t, b):
                        break
                    t, weight = t + 1, weight * H["gamma"] * c[t, b]
        for b in range(self.rows):
            for t in range(T):
                if self.valid[t, b]:
                    ahead = target[t + 1, b] if self.goes_on(t, b) else None
                    follows = self.bootstrap(value, t, b, ahead)
                    advantage[t, b] = self.reward[t, b] + H["gamma"] * follows - value[t, b]
        return target, advantage

    def targets(self):
        """Value targets and advantages in the reward's unit, and of A3C in the network's."""
        log_probs, present = self.forward(self.weights)
        present = np.concatenate([present * self.scale, self.value[-1:]])  # V(s_T) is that of acting time
        if self.kind == "gae":
            advantage = self.returns(self.value, H["gae_lambda"])
            return self.value[:-1] + advantage, advantage
        if self.kind == "vtrace":
            return self.vtrace(present, np.exp(self.of_actions(log_probs) - self.log_prob))
        advantage = self.returns(present, 1.0)
        return present[:-1] + advantage, advantage / self.scale

    def step(self):
        """Gradients by name, statistics, and the running mean square of returns after the step."""
        target, advantage = self.targets()
        square = self.scale**2
        if self.scale_returns:
            square += 0.01 * ((target[self.valid] ** 2).mean() - square)
        scale = math.sqrt(square)
        target, old_value = target / scale, self.value[:-1] / scale
        if self.normalize_advantage and self.kind != "a3c":
            known = advantage[self.valid]
            advantage = (advantage - known.mean()) / (known.std() + 1e-8)

        def loss(weights):
            log_probs, value = (x[self.valid] for x in self.forward(weights))
            log_prob = log_probs[np.arange(len(value)), self.action[self.valid]]
            a, aim, old = advantage[self.valid], target[self.valid], old_value[self.valid]
            policies, errors = log_prob * a, (value - aim) ** 2
            if self.kind != "a3c":
                ratio = np.exp(log_prob - self.log_prob[self.valid])
                near = old + np.clip(value - old, -H["clip_value"], H["clip_value"])
                policies = np.minimum(ratio * a, np.clip(ratio, 1 - H["clip_ratio"], 1 + H["clip_ratio"]) * a)
                errors = np.maximum(errors, (near - aim) ** 2)
            policy, error, divergence = -policies.mean(), 0.5 * errors.mean(), 0.0
            if self.kind != "a3c":
                divergence = (ratio - 1 - np.log(ratio)).mean()
            entropy = -(np.exp(log_probs) * log_probs).sum(-1).mean()
            total = policy + H["value_coef"] * error - H["entropy_coef"] * entropy + H["kl_coef"] * divergence
            return total, {"policy_loss": policy, "value_loss": error, "entropy": entropy}

        gradients, eps = {}, 1e-6
        for name, x in self.weights.items():
            gradient = np.zeros(x.size)
            for i in range(x.size):
                ends = []
                for sign in (1, -1):
                    moved = x.copy()
                    moved.flat[i] += sign * eps
                    ends.append(loss(self.weights | {name: moved})[0])
                gradient[i] = (ends[0] - ends[1]) / (2 * eps)
            gradients[name] = gradient.reshape(x.shape)
        return gradients, loss(self.weights)[1], square


CASES = {
    "gae": ("gae", {}),
    "gae raw returns and advantages": ("gae", {"advantage": False, "returns": False}),
    "gae observations": ("gae", {"obs": True}),
    "gae with an outdated rollout": ("gae", {"usable": (True, False)}),
    "vtrace": ("vtrace", {}),
    "vtrace raw advantages": ("vtrace", {"advantage": False}),
    "vtrace raw returns": ("vtrace", {"returns": False}),
    "a3c": ("a3c", {}),
    "a3c raw returns": ("a3c", {"returns": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_the_slow_reference(case):
    kind, changes = CASES[case]
    options = {"advantage": True, "returns": True, "obs": False, "usable": (True,) * K} | changes
    algo = "a3c" if kind == "a3c" else "appo"
    pack = make_pack(
        [H], algo=algo, optimizer=PLAIN, normalize_obs=options["obs"], normalize_returns=options["returns"]
    )
    shift = torch.randn(pack.state["param"].shape, generator=torch.Generator().manual_seed(1)) * 0.3
    pack.state["param"] += shift
    pack.weights.refresh_working(slice(0, 1))
    if options["returns"]:
        pack.state["return_square"][:] = RETURN_SQUARE
    rollouts = make_rollouts([0], seed=3)
    before = {name: weights.clone() for name, weights in pack.named_weights(0).items()}
    gradients, statistics, square = Reference(pack, rollouts, kind, **options).step()
    s = settings(algo, epochs=1, use_vtrace=kind == "vtrace", normalize_advantage=options["advantage"])
    (stats,) = learn(pack, batch_of(rollouts, 1, [options["usable"]]), s)
    after = pack.named_weights(0)
    for name, expected in gradients.items():
        found = (before[name].double() - after[name].double()).numpy()
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=3e-6, err_msg=name)
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    assert float(stats.values["grad_norm"][0]) == pytest.approx(norm, rel=1e-4)
    for name, expected in statistics.items():
        assert float(stats.values[name][0]) == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    assert float(pack.state["return_square"][0]) == pytest.approx(square, rel=1e-6)
