"""Run: the supervisor, its processes and memory, and the record.

Only higher layers import this package: the command line, the Python API, experiments, reports and `tune`.
"""
