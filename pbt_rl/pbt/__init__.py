"""The part that thinks: pure, seeded Python. No torch, no processes, no I/O."""
