"""Environments of several agents: PettingZoo by either API, DeepMind Lab2D, and the unit that both are played in."""
