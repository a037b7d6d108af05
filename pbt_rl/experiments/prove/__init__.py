"""Paired comparison of population based training with baselines (`pbt-rl prove`)."""
