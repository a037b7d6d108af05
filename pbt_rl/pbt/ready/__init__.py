"""Rules of readiness: when members are compared, and which of them take part.

Pure: seeded Python, no process, no file, no torch.
"""
