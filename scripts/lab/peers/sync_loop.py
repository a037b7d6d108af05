"""A plain synchronous PPO loop in one process over EnvPool, as fast as it can honestly be made: a peer to beat.

Runs in the peers' virtual environment, started by `scripts/lab/peer_bench.py`.
Sample T steps of N environments, then learn from them, once, in minibatches of whole environments:

    EnvPool (all cores) <--> forward of N rows (all cores)      T times
    GAE --> N / (minibatch / T) Adam updates (all cores)        once

Rows are shared out to one thread a core, each with single-threaded operators, and their gradients added: nothing
waits at a barrier inside an operator, where one disturbed core stops all others.
Axes: N environments, T time, A actions. Precision bf16: weights and activations in bf16, the master weights,
the losses and Adam in float32.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import envpool
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

FRAME_SKIP = 4
DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Options:
    """The job and PPO's settings (Schulman et al. 2017; Atari values), fixed but for the command line's."""

    precision: str
    threads: int
    seconds: float
    warmup_seconds: float
    envs: int = 64
    rollout: int = 32
    minibatch: int = 512
    seed: int = 0
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.1
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5

    @property
    def envs_per_minibatch(self) -> int:
        """Whole environments in a minibatch."""
        return self.minibatch // self.rollout


class NatureActorCritic(nn.Module):
    """Nature CNN (Mnih et al. 2015), 512 hidden, a policy and a value head: 1.7 M parameters.

    The features are flattened channels-last, so that no layout is changed on the way.
    """

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2)
        self.conv3, self.hidden = nn.Conv2d(64, 64, 3, 1), nn.Linear(3136, 512)
        self.heads = nn.Linear(512, actions + 1)
        for layer in (self.conv1, self.conv2, self.conv3, self.hidden, self.heads):
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.heads.weight[:-1] *= 0.01 / 2**0.5
            self.heads.weight[-1] /= 2**0.5

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels [B, 4, 84, 84] in 0..255, channels-last -> logits [B, A] and values [B], both float32."""
        x = F.relu(F.conv2d(pixels, self.conv1.weight / 255, self.conv1.bias, 4))
        x = F.relu(self.conv3(F.relu(self.conv2(x))))
        x = F.relu(self.hidden(x.permute(0, 2, 3, 1).flatten(1)))
        out = self.heads(x).float()
        return out[:, :-1], out[:, -1]


class Learner:
    """The computing network, its float32 master weights, and Adam on them."""

    def __init__(self, options: Options, actions: int) -> None:
        self.options = options
        master = NatureActorCritic(actions).to(memory_format=torch.channels_last)
        self.master = list(master.parameters())
        self.adam = torch.optim.Adam(self.master, lr=options.learning_rate, eps=1e-5, fused=True)
        self.net = NatureActorCritic(actions).to(DTYPES[options.precision], memory_format=torch.channels_last)
        self.working = list(self.net.parameters())
        self.pool = ThreadPoolExecutor(options.threads)
        self._publish()

    @torch.no_grad()
    def _publish(self) -> None:
        torch._foreach_copy_(self.working, self.master)

    def act(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Forward without gradients, rows shared out: logits [B, A] and values [B]."""
        parts = self.pool.map(self._forward, pixels.chunk(self.options.threads))
        logits, values = zip(*parts, strict=True)
        return torch.cat(logits), torch.cat(values)

    def update(self, batch: dict[str, Tensor]) -> None:
        """Take one Adam step on the master weights."""
        parts = zip(*(x.chunk(self.options.threads) for x in batch.values()), strict=True)
        gradients = self.pool.map(self._gradients, (dict(zip(batch, part, strict=True)) for part in parts))
        for master, *shares in zip(self.master, *gradients, strict=True):
            master.grad = sum(share.float() for share in shares)
        nn.utils.clip_grad_norm_(self.master, self.options.max_grad_norm, foreach=True)
        self.adam.step()
        self._publish()

    @torch.inference_mode()
    def _forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(pixels)

    def _gradients(self, part: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(ppo_loss(self.net, part, self.options), self.working)


@dataclass(frozen=True)
class Rollout:
    """The steps of a rollout. EnvPool resets on the step after an episode's end, which ignores its action."""

    pixels: Tensor
    """[T + 1, N, 84, 84, 4] 0..255, exact in bf16: converted once, read by inference and learning."""
    action: Tensor
    """int64 [T, N]"""
    log_prob: Tensor
    """float32 [T, N] under the policy that acted."""
    value: Tensor
    """float32 [T + 1, N]"""
    reward: NDArray[np.float32]
    """[T, N]"""
    terminated: NDArray[np.bool_]
    """[T, N]"""
    done: NDArray[np.bool_]
    """[T, N] terminated or truncated."""
    valid: NDArray[np.bool_]
    """[T, N] False if the step was a reset."""


class Sampler:
    """The environments and the rollout's buffers."""

    def __init__(self, options: Options) -> None:
        T, N = options.rollout, options.envs
        self.env = envpool.make(
            "Pong-v5",
            env_type="gym",
            num_envs=N,
            num_threads=options.threads,
            seed=options.seed,
            reward_clip=True,
            episodic_life=True,
        )
        self.actions = int(self.env.action_space.n)
        self.obs = self.env.reset()[0]
        self.ended = np.zeros(N, np.bool_)
        self.rollout = Rollout(
            pixels=torch.empty((T + 1, N, 84, 84, 4), dtype=DTYPES[options.precision]),
            action=torch.empty((T, N), dtype=torch.int64),
            log_prob=torch.empty((T, N)),
            value=torch.empty((T + 1, N)),
            reward=np.empty((T, N), np.float32),
            terminated=np.empty((T, N), np.bool_),
            done=np.empty((T, N), np.bool_),
            valid=np.empty((T, N), np.bool_),
        )

    @torch.inference_mode()
    def sample(self, learner: Learner) -> Rollout:
        """Play T steps in all environments."""
        r = self.rollout
        T = r.reward.shape[0]
        for t in range(T):
            logits, r.value[t] = learner.act(self._write_pixels(t))
            log_probs = logits.log_softmax(1)
            action = (log_probs.exp() / torch.empty_like(logits).exponential_()).argmax(1)
            r.action[t] = action
            r.log_prob[t] = log_probs.gather(1, action[:, None])[:, 0]
            r.valid[t] = ~self.ended
            self.obs, r.reward[t], r.terminated[t], truncated, _ = self.env.step(
                action.numpy().astype(np.int32)
            )
            self.ended = r.done[t] = r.terminated[t] | truncated
        r.value[T] = learner.act(self._write_pixels(T))[1]
        return r

    def _write_pixels(self, t: int) -> Tensor:
        """Convert the observations into the rollout; return them as the network reads them.

        One plane at a time is three times as fast as a conversion with a change of layout in one call.
        """
        pixels = self.rollout.pixels[t]
        for channel, plane in enumerate(torch.from_numpy(self.obs).unbind(1)):
            pixels[..., channel] = plane
        return pixels.permute(0, 3, 1, 2)


def gae(r: Rollout, gamma: float, gae_lambda: float) -> NDArray[np.float32]:
    """Advantages [T, N] (Schulman et al. 2016, eq. 16).

    After an episode's last step comes the value of its final observation if truncated, 0 if terminated.
    """
    T, N = r.reward.shape
    value = r.value.numpy()
    delta = r.reward + gamma * value[1:] * ~r.terminated - value[:-1]
    advantage = np.zeros((T + 1, N), np.float32)
    for t in reversed(range(T)):
        advantage[t] = delta[t] + gamma * gae_lambda * ~r.done[t] * advantage[t + 1]
    return advantage[:-1]


def ppo_loss(net: nn.Module, part: dict[str, Tensor], options: Options) -> Tensor:
    """A part's share of clipped surrogate, value and entropy (Schulman et al. 2017, eq. 9).

    `weight` adds up to 1 over the minibatch, so that the parts' gradients add up to the minibatch's.
    """
    logits, value = net(part["pixels"])
    log_probs = logits.log_softmax(1)
    ratio = (log_probs.gather(1, part["action"][:, None])[:, 0] - part["log_prob"]).exp()
    clipped = ratio.clamp(1 - options.clip, 1 + options.clip)
    surrogate = torch.minimum(ratio * part["advantage"], clipped * part["advantage"])
    entropy = -(log_probs.exp() * log_probs).sum(1)
    error = 0.5 * (value - part["return"]).square()
    total = options.value_coefficient * error - surrogate - options.entropy_coefficient * entropy
    return (part["weight"] * total).sum()


def learn(learner: Learner, r: Rollout, options: Options) -> None:
    """One epoch over the rollout in minibatches of whole environments."""
    advantage = torch.from_numpy(gae(r, options.gamma, options.gae_lambda))
    per_step = {
        "action": r.action,
        "log_prob": r.log_prob,
        "advantage": advantage,
        "return": advantage + r.value[:-1],
        "weight": torch.from_numpy(r.valid).float(),
        "pixels": r.pixels[:-1],
    }
    for envs in torch.randperm(options.envs).split(options.envs_per_minibatch):
        batch = {name: x.index_select(1, envs).flatten(0, 1) for name, x in per_step.items()}
        batch["pixels"] = batch["pixels"].permute(0, 3, 1, 2)
        batch["weight"] /= batch["weight"].sum()
        mean = (batch["weight"] * batch["advantage"]).sum()
        deviation = (batch["weight"] * (batch["advantage"] - mean).square()).sum().sqrt()
        batch["advantage"] = (batch["advantage"] - mean) / (deviation + 1e-8)
        learner.update(batch)


def raise_malloc_thresholds() -> None:
    """Keep freed blocks, instead of mapping and page-faulting a minibatch's activations anew every time."""
    libc = ctypes.CDLL("libc.so.6")
    trim_threshold, mmap_threshold = -1, -3
    for parameter in (mmap_threshold, trim_threshold):
        assert libc.mallopt(parameter, 1 << 30) == 1, "this glibc refuses a threshold of 1 GiB"


def run(options: Options) -> float:
    """Train; return the frames/s of whole iterations after the warm-up."""
    raise_malloc_thresholds()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    sampler = Sampler(options)
    learner = Learner(options, sampler.actions)
    begun = time.monotonic()
    start, iterations = 0.0, 0
    while not start or time.monotonic() - start < options.seconds:
        if not start and time.monotonic() - begun >= options.warmup_seconds:
            start, iterations = time.monotonic(), 0
        learn(learner, sampler.sample(learner), options)
        iterations += 1
    return iterations * options.rollout * options.envs * FRAME_SKIP / (time.monotonic() - start)


def main() -> None:
    """Parse the command line, run, write the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warmup-seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path, required=True, help="the result")
    arguments = vars(parser.parse_args())
    path = arguments.pop("json")
    path.write_text(json.dumps({"frames_per_second": run(Options(**arguments))}))


if __name__ == "__main__":
    main()
