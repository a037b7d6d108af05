"""The population of a run: its members, their slots and ratings, and the way of changes to their learners.

Imports pbt, wire and the views of display; no process, no file, no torch.
"""
