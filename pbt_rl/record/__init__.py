"""What a run leaves on disk: folder, journal, summary, weights.

Imports no process, no display and no learner.
"""
