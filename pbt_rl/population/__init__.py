"""The members as the supervisor knows them, and the way of decisions to their learners.

Imports pbt and wire; no process, no file, no torch.
"""
