"""Multi-agent environments: PettingZoo by either API, DeepMind Lab2D, and their common vector env."""
