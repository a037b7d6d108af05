"""What a run has found, as files for other programs: a trained member's network with a model card, its trials.

Reads run folders; starts no training.
"""
