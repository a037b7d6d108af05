"""Doom by VizDoom: units of one player, duels of two. Imports `envs` only."""
