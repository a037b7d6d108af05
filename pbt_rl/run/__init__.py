"""One run: the supervisor, its processes and memory, and the record.

Top layer: only the command line and the Python API import this package.
"""
