"""`pbt-rl sweep`: the same training with several seeds and options."""
