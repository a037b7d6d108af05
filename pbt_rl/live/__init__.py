"""`pbt-rl set`: change options of a run that trains."""
