"""DeepMind Lab: units, the processes that hold engines, levels, the cache of maps. Imports `envs` only."""
