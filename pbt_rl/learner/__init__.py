"""Learner process of a device: sampler, trainer, and members of a pack."""
