"""Gymnasium's `VectorEnv` whose arrays are tensors: ManiSkill, and simulators of one's own."""
