"""What a person watches while a run goes on: terminal, TensorBoard.

Draws views; imports no learner and no supervisor.
"""
