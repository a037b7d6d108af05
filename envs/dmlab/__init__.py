"""DeepMind Lab: vector envs, engine processes, levels, the map cache. Imports `envs` only."""
