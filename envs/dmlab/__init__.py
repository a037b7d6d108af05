"""DeepMind Lab (package deepmind_lab, the *engine*): vector env, processes of the engine, levels, map cache."""
