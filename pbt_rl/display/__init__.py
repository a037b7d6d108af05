"""Displays of a run: terminal, TensorBoard, figures, trackers, final summary.

Displays receive views (`view`). They import no learner and no supervisor, and do not affect the run.
"""
