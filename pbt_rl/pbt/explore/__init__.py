"""Rules of exploration: how values change.

Pure: seeded Python, no process, no file, no torch.
"""
