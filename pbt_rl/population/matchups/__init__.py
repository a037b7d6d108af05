"""Matchups in environments of several agents, and ratings from their games."""
