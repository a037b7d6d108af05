"""Displays of a run: terminal, TensorBoard, figures, trackers, final summary.

Each display receives a `RunView` (state of the population at one moment) about once a second. Displays do not affect
the run. They import neither learner nor supervisor.
"""
