"""Trackers (`--track`): outputs of a run's metrics besides terminal and TensorBoard."""
