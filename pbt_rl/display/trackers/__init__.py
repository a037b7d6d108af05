"""Trackers selected by `--track`: further destinations of a run's metrics, besides terminal and TensorBoard."""
