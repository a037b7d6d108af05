"""The files of a run: folder, journal, weights, checkpoints.

Imports no process, no display and no learner.
"""
