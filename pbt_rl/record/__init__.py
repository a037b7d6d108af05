"""Files of a run: folder, journal, checkpoints.

This package must not import processes, displays or learners.
"""
