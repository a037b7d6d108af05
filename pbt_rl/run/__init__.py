"""One run: the supervisor, its processes and memory, the controller, the audit.

The top room: imported by the command line and by the Python API only.
"""
