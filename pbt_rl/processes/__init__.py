"""Child processes: start, keeper, signals, import path, waiting and heartbeats."""
