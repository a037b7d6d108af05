"""`--pbt.ready timed`: comparisons by the time of training."""
