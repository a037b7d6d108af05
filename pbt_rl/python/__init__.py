"""The names for Python: `pbt_rl.train`, `pbt_rl.load_policy`, and what belongs to them."""
