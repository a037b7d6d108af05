"""Trained members: evaluation, matches between members, videos, export.

Reads run folders. Starts no training.
"""
