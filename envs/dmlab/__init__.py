"""DeepMind Lab: vector env, engine processes, levels, map cache."""
