"""Use of trained members: evaluation, matches between members, videos, export."""
