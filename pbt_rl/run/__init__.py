"""Run: the supervisor, its processes and memory, and the record.

This package is the top layer. Only the command line and the Python API import it.
"""
