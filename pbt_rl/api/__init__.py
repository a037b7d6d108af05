"""What users import: `train`, `load_policy`, callbacks. `pbt_rl/__init__.py` has the names."""
