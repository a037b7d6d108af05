"""Multi-agent environments: PettingZoo (parallel and AEC API), DeepMind Lab2D, and their common vector env."""
