"""Displays of a run: terminal, TensorBoard, figures, trackers, final summary.

Displays receive a `RunView` about once a second. Displays do not affect the run, and import no learner and no
supervisor.
"""
