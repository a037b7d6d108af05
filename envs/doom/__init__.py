"""Doom (package vizdoom): vector envs of single-player games and of duels."""
