"""Options and values that stand in files: `--config`, `--format`, tables for `--pbt.start-values`."""
