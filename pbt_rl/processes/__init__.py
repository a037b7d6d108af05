"""Child processes: start, keeper, signals, module search path, waiting and heartbeats."""
