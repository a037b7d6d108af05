"""Running statistics of a simulator's many rows."""

import math

import pytest
import torch

from pbt_rl.algos.normalizers import OBS_CLIP, Normalizers

POLICIES, STEPS, ROWS, SIZE = 16, 2, 4096, 2


def test_thousands_of_rows_are_counted_as_a_slow_loop_counts_them():
    """Numbers far from 0, over two batches, the second with a policy that sees nothing valid."""
    normalizers = Normalizers({"obs": SIZE}, returns=True)
    stats = normalizers.empty(lambda *shape, dtype=torch.float32: torch.zeros(POLICIES, *shape, dtype=dtype))
    generator = torch.Generator().manual_seed(0)
    every, seen = slice(0, POLICIES), [[] for _ in range(POLICIES)]
    centre = 100.0 * torch.arange(POLICIES).view(-1, 1, 1, 1)
    square = [1.0] * POLICIES
    for batch in range(2):
        obs = centre + torch.randn(POLICIES, STEPS, ROWS, SIZE, generator=generator) * (0.5 + batch)
        valid = torch.rand(POLICIES, STEPS, ROWS, generator=generator) > 0.1
        if batch:
            valid[3] = False
        target = torch.randn(POLICIES, STEPS, ROWS, generator=generator) * 3
        hidden = torch.where(valid.unsqueeze(-1), obs, torch.nan)
        normalizers.observe_obs(stats, every, {"obs": hidden}, valid)
        normalizers.observe_returns(stats, every, target, valid)
        for policy in range(POLICIES):
            taken = valid[policy].flatten().tolist()
            rows = obs[policy].flatten(0, 1).tolist()
            seen[policy] += [row for row, good in zip(rows, taken, strict=True) if good]
            returns = [x for x, good in zip(target[policy].flatten().tolist(), taken, strict=True) if good]
            if returns:
                square[policy] += 0.01 * (math.fsum(x * x for x in returns) / len(returns) - square[policy])
    for policy, rows in enumerate(seen):
        assert stats["obs_count.obs"][policy] == len(rows)
        for number in range(SIZE):
            column = [row[number] for row in rows]
            mean = math.fsum(column) / len(column)
            var = math.fsum((x - mean) ** 2 for x in column) / len(column)
            assert stats["obs_mean.obs"][policy, number].item() == pytest.approx(mean, rel=1e-6, abs=1e-6)
            assert stats["obs_var.obs"][policy, number].item() == pytest.approx(var, rel=1e-5)
            wanted = (obs[policy, 0, :50, number] - mean) / math.sqrt(var + 1e-6)
            given = normalizers.normalize_obs(stats, every, {"obs": obs})["obs"][policy, 0, :50, number]
            torch.testing.assert_close(given, wanted.clamp(-OBS_CLIP, OBS_CLIP), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(stats["return_square"], torch.tensor(square), rtol=1e-5, atol=0)
