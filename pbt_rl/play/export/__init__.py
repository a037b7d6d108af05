"""Export of a run's results for other programs: a member's network with a model card, the trials.

Reads run folders. Starts no training.
"""
