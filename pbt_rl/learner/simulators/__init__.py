"""Simulators on the learner's device, in which it samples itself, without actors."""
