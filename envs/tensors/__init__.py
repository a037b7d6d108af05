"""Toys whose rows are tensors, for simulators on the learner's device."""
