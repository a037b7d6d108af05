"""PPO on a MinAtar game of gymnax in one compiled function, with the values of PureJaxRL: the curve beside ours.

    python scripts/lab/peers/jit_minatar.py Breakout --seeds 0:3 >> docs/lab/results/minatar_jit.csv
    python scripts/lab/peers/jit_minatar.py Breakout --seeds 0:1 --activation elu --rows 256 --steps 32

Values: `examples/brax_minatar.ipynb` of luchris429/purejaxrl. 64 rows, rollouts of 128 steps, 4 passes of 8
minibatches, a rate that falls from 5e-3 to 0, gamma 0.99, lambda 0.95, clips of 0.2, entropy 0.01, two networks of
64-64 (relu). A row of the output is a tenth of the run: the mean return of the training games that ended in it. One
more row of a seed is judged as ours are: 100 fresh games with sampled actions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
from jit_ppo import CLIP, Tree, adam, mlp

EPOCHS, MINIBATCHES = 4, 8
ACTIVATIONS = {"relu": jax.nn.relu, "elu": jax.nn.elu}
GAMMA, LAMBDA, RATE, ENTROPY = 0.99, 0.95, 5e-3, 0.01
FRAMES, PARTS, GAMES = 5_000_000, 10, 100


def _loss(net: Tree, s: Tree, forward: Callable[[Tree, Any], Any]) -> Any:
    log_probs = jax.nn.log_softmax(forward(net["policy"], s["obs"]))
    log_prob = jnp.take_along_axis(log_probs, s["action"][:, None], 1)[:, 0]
    value = forward(net["value"], s["obs"])[:, 0]
    ratio = jnp.exp(log_prob - s["log_prob"])
    a = (s["advantage"] - s["advantage"].mean()) / (s["advantage"].std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * a, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * a).mean()
    clipped = s["value"] + jnp.clip(value - s["value"], -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - s["target"]) ** 2, (clipped - s["target"]) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return policy_loss + 0.5 * value_loss - ENTROPY * entropy


class Trainer:
    """One policy on one game."""

    def __init__(self, game: str, seed: int, rows: int, steps: int, activation: str) -> None:
        self._rows, self._steps, self._activation = rows, steps, ACTIVATIONS[activation]
        self.updates = FRAMES // (rows * steps)
        self._env, self._params = gymnax.make(f"{game}-MinAtar")
        keys = jax.random.split(jax.random.PRNGKey(seed), 3)
        inputs, actions = 10 * 10 * self._env.obs_shape[-1], self._env.num_actions
        net = {
            "policy": mlp(keys[0], (inputs, 64, 64, actions)),
            "value": mlp(keys[1], (inputs, 64, 64, 1)),
        }
        net["policy"][-1] = (0.01 * net["policy"][-1][0], net["policy"][-1][1])
        zeros = jax.tree.map(jnp.zeros_like, net)
        self._whole = (net, (zeros, zeros), jnp.zeros(()), *self._reset(keys[1], rows), keys[2])
        self._update = jax.jit(self._updated)

    def _forward(self, layers: Tree, x: Any) -> Any:
        for w, bias in layers[:-1]:
            x = self._activation(x @ w + bias)
        w, bias = layers[-1]
        return x @ w + bias

    def _reset(self, key: Any, rows: int) -> tuple[Any, Any, Any]:
        obs, state = jax.vmap(self._env.reset, (0, None))(jax.random.split(key, rows), self._params)
        return obs.reshape(rows, -1), state, jnp.zeros(rows)

    def _step(self, carry: Tree, _: None) -> tuple[Tree, Tree]:
        net, obs, state, total, key = carry
        rows = obs.shape[0]
        key, draw, step_key = jax.random.split(key, 3)
        log_probs = jax.nn.log_softmax(self._forward(net["policy"], obs))
        action = jax.random.categorical(draw, log_probs)
        after, state, reward, ended, cut, _ = jax.vmap(self._env.step, (0, 0, 0, None))(
            jax.random.split(step_key, rows), state, action, self._params
        )
        end = ended | cut  # as in most such code, a time-out is an end
        total = total + reward
        step = {
            "obs": obs,
            "action": action,
            "log_prob": jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0],
            "value": self._forward(net["value"], obs)[:, 0],
            "reward": reward,
            "end": end,
            "return": jnp.where(end, total, 0.0),
        }
        return (net, after.reshape(rows, -1), state, jnp.where(end, 0.0, total), key), step

    def _updated(self, whole: Tree) -> tuple[Tree, Any]:
        net, moments, count, obs, state, total, key = whole
        (net, obs, state, total, key), s = jax.lax.scan(
            self._step, (net, obs, state, total, key), None, self._steps
        )
        last = self._forward(net["value"], obs)[:, 0]

        def back(carry: Tree, one: Tree) -> tuple[Tree, Any]:
            advantage, following = carry
            goes_on = 1.0 - one["end"]
            delta = one["reward"] + GAMMA * following * goes_on - one["value"]
            advantage = delta + GAMMA * LAMBDA * goes_on * advantage
            return (advantage, one["value"]), advantage

        _, s["advantage"] = jax.lax.scan(back, (jnp.zeros(self._rows), last), s, reverse=True)
        s["target"] = s["advantage"] + s["value"]
        games = jnp.stack([s.pop("return").sum(), s["end"].sum()])
        s = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), s)

        def learn(carry: Tree, order: Any) -> tuple[Tree, None]:
            net, moments, count = carry
            grads = jax.grad(_loss)(net, jax.tree.map(lambda x: x[order], s), self._forward)
            rate = RATE * (1 - (count // (EPOCHS * MINIBATCHES)) / self.updates)
            net, moments = adam(net, grads, moments, count + 1, rate)
            return (net, moments, count + 1), None

        key, *draws = jax.random.split(key, EPOCHS + 1)
        orders = [jax.random.permutation(d, self._rows * self._steps).reshape(MINIBATCHES, -1) for d in draws]
        (net, moments, count), _ = jax.lax.scan(learn, (net, moments, count), jnp.concatenate(orders))
        return (net, moments, count, obs, state, total, key), games

    def train(self, updates: int) -> tuple[int, float]:
        """Return the games that ended in some updates, and their mean return."""
        games = jnp.zeros(2)
        for _ in range(updates):
            self._whole, now = self._update(self._whole)
            games += now
        return int(games[1]), float(games[0] / games[1])

    def judged(self, key: Any) -> float:
        """Return the mean of the first game of each of GAMES fresh rows."""
        carry = (self._whole[0], *self._reset(key, GAMES), key)
        limit = self._params.max_steps_in_episode + 1
        _, steps = jax.jit(lambda carry: jax.lax.scan(self._step, carry, None, limit))(carry)
        first = jnp.argmax(steps["end"], 0)
        return float(steps["return"][first, jnp.arange(GAMES)].mean())


def main() -> None:
    """Train each seed and print its rows: arm, seed, frames, games, score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game", choices=("Breakout", "Freeway", "Asterix", "SpaceInvaders"))
    parser.add_argument("--seeds", default="0:3", help="first:end")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=128, help="of a rollout")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu")
    args = parser.parse_args()
    first, end = map(int, args.seeds.split(":"))
    for seed in range(first, end):
        trainer = Trainer(args.game, seed, args.rows, args.steps, args.activation)
        for part in range(1, PARTS + 1):
            done, until = (trainer.updates * n // PARTS for n in (part - 1, part))
            games, score = trainer.train(until - done)
            print(f"{args.game},{seed},{FRAMES * part // PARTS},{games},{score:.3f}", flush=True)
        judged = trainer.judged(jax.random.PRNGKey(1000 + seed))
        print(f"{args.game},{seed},{FRAMES},{GAMES},{judged:.3f}", flush=True)


if __name__ == "__main__":
    main()
