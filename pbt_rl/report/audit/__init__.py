"""`pbt-rl audit`: decide a recorded run again."""
