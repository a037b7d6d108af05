"""Learner process of a device: sampler, trainer, and the members of its pack."""
