"""Searches over configurations: HyperTrick, Successive Halving, Hyperband, ASHA, random and grid search.

Pure: seeded Python without processes, files or torch.
"""
