"""The mutants of `mutants.py`: a line of the mathematics, what stands in its place, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass

REFERENCE = "tests/algos/test_reference.py"
SAMPLER, TRAINER, LEARNER = (f"tests/learner/test_{name}.py" for name in ("sampler", "trainer", "learner"))
RETURNS, OPTIM, SELECTION, PB2 = (
    "tests/algos/test_returns.py",
    "tests/algos/test_optim.py",
    "tests/controllers/published/test_selection.py",
    "tests/controllers/pb2/test_pb2.py",
)
SHARES = "tests/population/test_shares.py"


@dataclass(frozen=True)
class Mutant:
    """One mistake. `text` stands exactly once in the file."""

    name: str
    path: str
    text: str
    instead: str
    tests: tuple[str, ...] = (REFERENCE,)


def _of(
    path: str, *mutants: tuple[str, str, str], tests: tuple[str, ...] = (REFERENCE,)
) -> tuple[Mutant, ...]:
    return tuple(Mutant(name, path, text, instead, tests) for name, text, instead in mutants)


MUTANTS: tuple[Mutant, ...] = (
    *_of(
        "algos/appo.py",
        (
            "vtrace: sign of the log ratio",
            "torch.where(present.valid, present.log_prob - s.log_prob, 0.0)",
            "torch.where(present.valid, s.log_prob - present.log_prob, 0.0)",
        ),
        (
            "vtrace: rho stays in the advantage",
            "return target, advantage / rho.clamp(min=1e-6)",
            "return target, advantage",
        ),
        (
            "vtrace: values of acting time",
            "value_T1 = torch.cat([present.value, s.last_value.unsqueeze(1)], dim=1)",
            "value_T1 = torch.cat([s.value, s.last_value.unsqueeze(1)], dim=1)",
        ),
        (
            "gae: last bootstrap is 0",
            "value_T1 = torch.cat([s.value, s.last_value.unsqueeze(1)], dim=1)",
            "value_T1 = torch.cat([s.value, 0 * s.last_value.unsqueeze(1)], dim=1)",
        ),
        (
            "gae: lambda and gamma swapped",
            'hypers["gamma"], hypers["gae_lambda"], hypers["unroll"])',
            'hypers["gae_lambda"], hypers["gamma"], hypers["unroll"])',
        ),
        (
            "ppo: advantages never normalised",
            "    if settings.normalize_advantage:\n",
            "    if False:\n",
        ),
        (
            "ppo: the larger surrogate",
            "surrogate = torch.minimum(ratio * advantage",
            "surrogate = torch.maximum(ratio * advantage",
        ),
        ("ppo: the smaller value error", "error = torch.maximum(", "error = torch.minimum("),
        (
            "ppo: the entropy is punished",
            "value_loss - entropy_coef * entropy",
            "value_loss + entropy_coef * entropy",
        ),
        ("ppo: a whole value loss", "value_loss = 0.5 * mean(error", "value_loss = mean(error"),
        (
            "ppo: the ratio is clipped on one side",
            "clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)",
            "clamp(ratio, 1 - clip_ratio, 9 + clip_ratio)",
        ),
        (
            "ppo: the value is clipped around the target",
            "clipped_value = old_value + clamp(value - old_value",
            "clipped_value = old_value + clamp(value - target",
        ),
    ),
    *_of(
        "algos/a3c.py",
        (
            "a3c: the advantage in reward units",
            "advantage / present.return_scale[:, None, None]",
            "advantage",
        ),
        ("a3c: targets without the value", "return advantage + present.value, ", "return advantage, "),
        ("a3c: a lambda below 1", "torch.ones_like(gamma)", "0.9 * torch.ones_like(gamma)"),
        ("a3c: sign of the policy's loss", "policy_loss = -mean(s.log_prob", "policy_loss = mean(s.log_prob"),
    ),
    *_of(
        "algos/update.py",
        (
            "update: gae targets without the value",
            "return s.value + s.advantage, s.advantage",
            "return s.advantage, s.advantage",
        ),
        ("update: targets not normalised", "target=pack.normalize_value(target, span)", "target=target"),
        (
            "update: old values not normalised",
            "old_value=pack.normalize_value(s.value, span)",
            "old_value=s.value",
        ),
        (
            "update: present values not denormalised",
            "pack.denormalize_value(value, span), valid",
            "value, valid",
        ),
        (
            "update: returns never observed",
            "self._pack.observe_returns(span, target_GTB, valid_GTB)",
            "pass",
        ),
        (
            "update: outdated rows are learned from",
            "valid = part.valid & (current_G & ~stopped_G)[:, None, None]",
            "valid = torch.ones_like(part.valid) & (current_G & ~stopped_G)[:, None, None]",
        ),
    ),
    *_of(
        "algos/normalizers.py",
        (
            "normalizers: the mean is taken, not the mean square",
            "target_GTB**2, 0.0",
            "target_GTB.abs(), 0.0",
        ),
        (
            "normalizers: observations are not centred",
            "scaled = (x - mean) /",
            "scaled = x /",
        ),
        (
            "normalizers: divided by the variance",
            "(var + 1e-6).sqrt()",
            "(var + 1e-6)",
        ),
    ),
    *_of(
        "algos/losses.py",
        ("losses: deviation 0 more", "(variance.sqrt() + 1e-8)", "(variance + 1e-8)"),
        ("losses: mean over all samples", "valid.sum().clamp_min(1)", "valid.numel()"),
    ),
    *_of(
        "algos/returns.py",
        (
            "returns: gae goes on after a limit",
            "truncated[p, t, b]\n                ahead = zero if cut else gamma[p] * lam",
            "terminated[p, t, b]\n                ahead = zero if cut else gamma[p] * lam",
        ),
        (
            "returns: gae bootstraps after the end",
            "zero if terminated[p, t, b] else value[p, t + 1, b]\n                delta = reward",
            "value[p, t + 1, b]\n                delta = reward",
        ),
        ("returns: vtrace without the limit c", "c_t = lam[p] * min(c[p], ratio)", "c_t = lam[p] * ratio"),
        ("returns: vtrace without the limit rho", "rho_t = min(rho[p], ratio)", "rho_t = ratio"),
        ("returns: vtrace carries rho", "carry[b] = delta + c_t * ahead", "carry[b] = delta + rho_t * ahead"),
        (
            "returns: vtrace's advantage by its own trace",
            "advantage[p, t, b] = delta + rho_t * ahead",
            "advantage[p, t, b] = delta + c_t * ahead",
        ),
        (
            "returns: the unroll ends one step late",
            "boundary = (t + 1) % unroll[p] == 0\n            for b in range(rows):\n                next_value",
            "boundary = t % unroll[p] == 0\n            for b in range(rows):\n                next_value",
        ),
        tests=(REFERENCE, RETURNS),
    ),
    *_of(
        "algos/optim.py",
        (
            "optim: adam without bias correction",
            "correction1_G = 1 - beta1_G.double() ** g.steps_G",
            "correction1_G = 1 - 0 * beta1_G.double() ** g.steps_G",
        ),
        (
            "optim: the norm is not limited",
            "max_norm_G / (norm_G + 1e-6), max=1.0",
            "max_norm_G / (norm_G + 1e-6), max=1e9",
        ),
        tests=(OPTIM,),
    ),
    *_of(
        "pbt_rl/learner/sampler.py",
        (
            "sampler: bootstrap one step early",
            'unit.rollout.by_policy["value"][unit.t] = value[:, mine]\n            if unit.t',
            (
                'values = unit.rollout.by_policy["value"]\n'
                "            values[unit.t] = value[:, mine] if unit.t < self._steps else values[unit.t - 1]\n"
                "            if unit.t"
            ),
        ),
        (
            "sampler: every unit is the first",
            "environment=unit.number * self._envs + row % self._envs",
            "environment=row % self._envs",
        ),
        tests=(SAMPLER,),
    ),
    *_of(
        "pbt_rl/learner/trainer.py",
        (
            "trainer: the lag of the last step",
            "(lag_PKT[:, :, 0] <= self._max_lag)",
            "(lag_PKT[:, :, -1] <= self._max_lag)",
        ),
        tests=(TRAINER,),
    ),
    *_of(
        "pbt_rl/learner/learner.py",
        (
            "learner: a linear rate that never falls",
            "factor_P = (1.0 - frames_P /",
            "factor_P = (1.0 - 0 * frames_P /",
        ),
        ("learner: a linear rate below 0", ".clip(0.0, 1.0)", ".clip(-9.0, 1.0)"),
        tests=(LEARNER,),
    ),
    *_of(
        "pbt_rl/controllers/pb2/pb2.py",
        ("pb2: beta is 0", "beta = max(0.0, 0.2 * math.log(0.4 * len(self._data)))", "beta = 0.0"),
        (
            "pb2: asked for the first time",
            "bound(rows(points, self._frames))",
            "bound(rows(points, first))",
        ),
        tests=(PB2,),
    ),
    *_of(
        "pbt_rl/controllers/pb2/gaussian_process.py",
        (
            "pb2: a kernel without time",
            "K = np.exp(-squares / 2 - self.decay * time)",
            "K = np.exp(-squares / 2)",
        ),
        ("pb2: beta, not its root", "np.sqrt(beta) * deviation", "beta * deviation"),
        ("pb2: pending points do not count", "if pending is None else", "if True else"),
        tests=(PB2,),
    ),
    *_of(
        "pbt_rl/controllers/published/orion.py",
        ("backtrack: any better elite", "if worse_than >= int(self.quantile * total):", "if worse_than:"),
        tests=(SELECTION,),
    ),
    *_of(
        "pbt_rl/population/population.py",
        (
            "shares: nobody is waited for",
            "len(self._held) == self.environments",
            "self._held",
        ),
        (
            "shares: all that has ended counts",
            "        taken = [self._held[e].pop(0) for e in sorted(self._held)]",
            "        held, self._held = self._held, {}\n        taken = [x for e in sorted(held) for x in held[e]]",
        ),
        ("shares: patience without end", "frames - self._begun_frames < self.patience_frames", "True"),
        tests=(SHARES,),
    ),
)
