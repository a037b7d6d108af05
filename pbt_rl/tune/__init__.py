"""Population-based training of anything that trains, in one process or several.

Imports pbt, wire and record; no torch and no reinforcement learning.
"""
