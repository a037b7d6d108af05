"""PPO on gymnax in one compiled function, rollout and all passes: what a JAX user writes to be fast.

The same networks (64-64 tanh, a critic of its own, free deviations), rollout, passes, clips of ratio and value, Adam
and limit of the gradient as the toys' recipe has. A time-out is an end, as in most such code. With several policies
everything is under `vmap`.

Axes: P policies, b rows, T steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnax
import jax
import jax.numpy as jnp

STEPS = 24
GAMMA, LAMBDA, CLIP, RATE, MAX_NORM = 0.95, 0.95, 0.2, 1e-3, 0.5
BETA1, BETA2, EPS = 0.9, 0.999, 1e-5
Tree = Any


def mlp(key: Any, sizes: tuple[int, ...]) -> Tree:
    """Return orthogonal weights and zero biases of layers."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.nn.initializers.orthogonal()(k, (n, m)), jnp.zeros(m))
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _forward(layers: Tree, x: Any) -> Any:
    for w, bias in layers[:-1]:
        x = jnp.tanh(x @ w + bias)
    w, bias = layers[-1]
    return x @ w + bias


def _log_prob(params: Tree, mean: Any, action: Any) -> Any:
    z = (action - mean) * jnp.exp(-params["log_std"])
    return (-0.5 * z**2 - params["log_std"] - 0.5 * jnp.log(2 * jnp.pi)).sum(-1)


def _loss(params: Tree, s: Tree) -> Any:
    log_prob = _log_prob(params, _forward(params["policy"], s["obs"]), s["action"])
    value = _forward(params["value"], s["obs"])[:, 0]
    ratio = jnp.exp(log_prob - s["log_prob"])
    a = (s["advantage"] - s["advantage"].mean()) / (s["advantage"].std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * a, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * a).mean()
    clipped = s["value"] + jnp.clip(value - s["value"], -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - s["target"]) ** 2, (clipped - s["target"]) ** 2).mean()
    return policy_loss + 0.5 * value_loss


def adam(params: Tree, grads: Tree, moments: Tree, step: Any, rate: Any = RATE) -> tuple[Tree, Tree]:
    """Return the parameters and moments after step `step` (from 1), the gradient limited to MAX_NORM."""
    leaves = jax.tree.leaves(grads)
    norm = jnp.sqrt(sum((g**2).sum() for g in leaves))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, MAX_NORM / (norm + 1e-6)), grads)
    mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, moments[0], grads)
    square = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g**2, moments[1], grads)
    rate = rate * jnp.sqrt(1 - BETA2**step) / (1 - BETA1**step)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + EPS), params, mean, square)
    return params, (mean, square)


class JitSide:
    """P policies of b rows; `batch` is one call of the compiled function."""

    def __init__(
        self, policies: int, rows: int, epochs: int, minibatches: int, name: str = "Pendulum-v1"
    ) -> None:
        env, env_params = gymnax.make(name)
        size = env.observation_space(env_params).shape[0]
        self.frames = policies * rows * STEPS

        def begin(key: Any) -> Tree:
            keys = jax.random.split(key, 3)
            net = {
                "policy": mlp(keys[0], (size, 64, 64, 1)),
                "value": mlp(keys[1], (size, 64, 64, 1)),
                "log_std": jnp.zeros(1),
            }
            obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(keys[2], rows), env_params)
            zeros = jax.tree.map(jnp.zeros_like, net)
            return net, (zeros, zeros), jnp.zeros(()), obs, state, key

        def act(carry: Tree, _: None) -> tuple[Tree, Tree]:
            net, obs, state, key = carry
            key, draw, step_key = jax.random.split(key, 3)
            mean = _forward(net["policy"], obs)
            action = mean + jnp.exp(net["log_std"]) * jax.random.normal(draw, mean.shape)
            value = _forward(net["value"], obs)[:, 0]
            keys = jax.random.split(step_key, rows)
            after, state, reward, ended, cut, _ = jax.vmap(env.step, (0, 0, 0, None))(
                keys, state, jnp.clip(action, -2, 2), env_params
            )
            log_prob = _log_prob(net, mean, action)
            step = {
                "obs": obs,
                "action": action,
                "log_prob": log_prob,
                "value": value,
                "reward": reward,
                "end": ended | cut,
            }
            return (net, after, state, key), step

        def learn(samples: Tree, carry: Tree, order: Any) -> tuple[Tree, None]:
            net, moments, step = carry
            part = jax.tree.map(lambda x: x[order], samples)
            net, moments = adam(net, jax.grad(_loss)(net, part), moments, step + 1)
            return (net, moments, step + 1), None

        def iterate(whole: Tree) -> Tree:
            net, moments, step, obs, state, key = whole
            (net, obs, state, key), s = jax.lax.scan(act, (net, obs, state, key), None, STEPS)
            last = _forward(net["value"], obs)[:, 0]

            def back(carry: Tree, one: Tree) -> tuple[Tree, Any]:
                advantage, following = carry
                goes_on = 1.0 - one["end"]
                delta = one["reward"] + GAMMA * following * goes_on - one["value"]
                advantage = delta + GAMMA * LAMBDA * goes_on * advantage
                return (advantage, one["value"]), advantage

            _, s["advantage"] = jax.lax.scan(back, (jnp.zeros(rows), last), s, reverse=True)
            s["target"] = s["advantage"] + s["value"]
            s = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), s)
            key, *draws = jax.random.split(key, epochs + 1)
            orders = jnp.concatenate(
                [jax.random.permutation(d, rows * STEPS).reshape(minibatches, -1) for d in draws]
            )
            (net, moments, step), _ = jax.lax.scan(partial(learn, s), (net, moments, step), orders)
            return net, moments, step, obs, state, key

        self._whole = jax.vmap(begin)(jax.random.split(jax.random.PRNGKey(0), policies))
        self._iterate = jax.jit(jax.vmap(iterate), donate_argnums=0)

    def batch(self) -> None:
        """Act for a rollout and learn from it."""
        self._whole = jax.block_until_ready(self._iterate(self._whole))

    def close(self) -> None:
        """Release nothing."""
