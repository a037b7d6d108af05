"""Doom by VizDoom: vector envs for one player, duels for two. Imports `envs` only."""
