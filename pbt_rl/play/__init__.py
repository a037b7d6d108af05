"""Trained members: evaluation, matches between members, videos, export.

The package reads run folders and starts no training.
"""
