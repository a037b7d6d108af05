"""The files of a run: folder, journal, weights.

Imports no process, no display and no learner.
"""
