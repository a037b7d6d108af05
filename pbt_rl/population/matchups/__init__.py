"""Matchups in multi-agent environments, and ratings from games."""
