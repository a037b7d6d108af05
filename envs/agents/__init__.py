"""Environments of several agents: PettingZoo, and levels of DeepMind Lab2D."""
