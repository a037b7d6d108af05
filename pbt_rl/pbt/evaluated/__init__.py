"""Members are evaluated on purpose before they are compared: `--pbt.evaluate-episodes`."""
