"""`pbt-rl sweep`: train the same with several seeds and options."""
