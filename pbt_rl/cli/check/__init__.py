"""`pbt-rl envs check`: play an environment as training does, and look for mistakes in it."""
