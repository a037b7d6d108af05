"""What a person watches while a run goes on: terminal, TensorBoard, figures, the summary at the end.

Displays receive views (`view`); they import no learner and no supervisor, and change nothing.
"""
