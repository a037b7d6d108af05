"""Trained members: evaluation, matches between members, videos, export. Run folders are only read."""
