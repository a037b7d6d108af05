"""Training run: supervisor, learner and actor processes, their shared memory, checkpoints and records.

Only higher layers import this package: the command line, the Python API, experiments, reports and `tune`.
"""
