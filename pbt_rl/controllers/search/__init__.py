"""Searches over configurations: HyperTrick, Successive Halving, Hyperband, random, grid.

Pure: seeded Python, no process, no file, no torch.
"""
