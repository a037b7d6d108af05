"""Trained members at play: evaluation, games against others, films.

Reads run folders; starts no training.
"""
