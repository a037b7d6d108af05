"""Simulators with the interface of RSL-RL's `VecEnv`: mjlab, Isaac Lab, Legged Gym."""
