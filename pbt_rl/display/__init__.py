"""Displays of a run: terminal, TensorBoard, figures, trackers, final summary.

Terminal, TensorBoard and trackers receive a `RunView` (state of the population at one moment) every 1 to 10 seconds.
Displays do not affect decisions and training. They import neither learner nor supervisor.
"""
