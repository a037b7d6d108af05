"""Simulators on the learner's device: an extra, which samples in them instead of actors."""
